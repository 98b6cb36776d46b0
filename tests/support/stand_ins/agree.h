/* Part of the stand-in for libcuda in gpu.c: random products, on the processor. */

/* Whether a setting such as STAND_IN_FLIP=1:fp16 means this GPU and this format. */
static int meant(const char *name, const char *format)
{
    const char *value = setting(name);
    return value && atoi(value) == current && strchr(value, ':') && !strcmp(strchr(value, ':') + 1, format);
}

/* Sums of random products, with another rounding in each format; not those of a GPU. */
static int agree(const char *format, unsigned seed, unsigned first, unsigned rounds, unsigned long long *sum)
{
    static char last[16];
    static int tries;
    if (strcmp(last, format))
        snprintf(last, sizeof last, "%s", format), tries = 0;
    double fine = format[1] == 'p' ? ldexp(1, atoi(format + 2)) : 16;
    tries += first == 0;
    for (unsigned round = first; round < first + rounds; round++) {
        unsigned state = seed ^ round * 2654435761u;
        double result = 0;
        for (int step = 0; step < 64; step++) {
            state = state * 1664525u + 1013904223u;
            double a = (state >> 16) / 65536.0 - 0.5, b = (state & 0xffff) / 65536.0 - 0.5;
            result = rint((result + a * b) * fine) / fine + format[strlen(format) - 1];
        }
        unsigned long long bits;
        memcpy(&bits, &result, sizeof bits);
        if (round == 2 && (meant("STAND_IN_FLIP", format) || (tries == 1 && meant("STAND_IN_FLAKY", format))))
            bits ^= 1 << 7;
        *sum += bits * 0x9e3779b97f4a7c15ull;
    }
    return trouble("STAND_IN_AGREE");
}
