/* A stand-in of NVIDIA's NCCL for machines without a GPU: the same functions, on memory of the
 * processor, between processes and hosts over TCP (IPv4). It computes, so that what is summed can
 * be right or wrong. As in NCCL, a rank whose peer is gone gets ncclRemoteError (6), and a rank
 * whose peer says nothing waits forever.
 *
 * A file `faults` beside the library is read when a communicator starts; a word and a value a line:
 *
 *   name NAME      what peers call this member (default: the host's name)
 *   slow N         this member sends N times slower
 *   link NAME N    it sends N times slower to that member
 *   port NAME N    it sends N times slower where it uses that port, such as mlx5_1
 *   wrong 1        one value of each result of this member is wrong
 *   hang STEP      this member stops for ever at its so manieth collective
 *   crash STEP     its process ends there
 *
 * Ports are names alone: NCCL_IB_HCA (`=mlx5_0:1,mlx5_1:1`) says how many a member uses, each of
 * which takes its share of the bytes at the same time, so that the slowest one counts.
 *
 * Known differences: the ring is that of the ranks; nothing is asynchronous; and a byte takes
 * PACE_NS, far longer than TCP needs, so that a busy machine measures the same as an idle one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { PACE_NS = 60, MOST_RANKS = 512, MOST_QUEUED = 4096, FLOAT32 = 7, SUM = 0, WORD = 64 };

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { uint64_t magic; uint32_t address; uint16_t port; } Meeting;
typedef struct { uint32_t rank, address; uint16_t port; char name[WORD]; } Member;

typedef struct {
    int rank, ranks, listener, collectives;
    int sockets[MOST_RANKS];
    Member members[MOST_RANKS];
    int slow, wrong, hang, crash, link_slow, port_slow, ports;
    char link[WORD];
} Comm;

typedef enum { INIT, REDUCE, GATHER, SEND, RECEIVE } Kind;
typedef struct Task {
    Kind kind;
    Comm **made, *comm;
    ncclUniqueId id;
    int ranks, rank, peer;
    const void *from;
    void *to;
    size_t bytes;
    int status, done;
    struct Task *other; /* of a SEND: what the same rank receives meanwhile */
} Task;

#define MAGIC 0x6770755f666c6565ULL

static int root_listener = -1;
static __thread int depth, queued;
static __thread Task queue[MOST_QUEUED];
static __thread char last_error[256] = "";

static void pause_ns(uint64_t ns)
{
    struct timespec wanted = { ns / 1000000000, ns % 1000000000 };
    while (nanosleep(&wanted, &wanted) && errno == EINTR)
        ;
}

static int listening(uint16_t *port)
{
    struct sockaddr_in where = { .sin_family = AF_INET };
    socklen_t size = sizeof where;
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || bind(made, (void *)&where, sizeof where) || listen(made, MOST_RANKS)
        || getsockname(made, (void *)&where, &size))
        return -1;
    *port = where.sin_port;
    return made;
}

static uint32_t own_address(void)
{
    struct ifaddrs *all, *one;
    uint32_t found = htonl(INADDR_LOOPBACK);
    if (getifaddrs(&all))
        return found;
    for (one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && one->ifa_flags & IFF_UP
            && !(one->ifa_flags & IFF_LOOPBACK)) {
            found = ((struct sockaddr_in *)one->ifa_addr)->sin_addr.s_addr;
            break;
        }
    freeifaddrs(all);
    return found;
}

static int all_of(int fd, void *data, size_t bytes, int writing)
{
    char *at = data;
    while (bytes) {
        ssize_t done = writing ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return REMOTE;
        at += done;
        bytes -= done;
    }
    return OK;
}

static int connected(uint32_t address, uint16_t port)
{
    struct sockaddr_in where = { .sin_family = AF_INET, .sin_port = port };
    int yes = 1, made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    where.sin_addr.s_addr = address;
    if (made >= 0 && connect(made, (void *)&where, sizeof where)) {
        snprintf(last_error, sizeof last_error, "connect: %s", strerror(errno));
        close(made);
        return -1;
    }
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return made;
}

/* How many ports NCCL_IB_HCA names, and whether one of them has this name. */
static int uses_port(const char *name, int *ports)
{
    const char *at = getenv("NCCL_IB_HCA");
    int found = 0;
    *ports = 0;
    for (at = at && *at == '=' ? at + 1 : at; at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t size = strcspn(at, ":,");
        found |= size == strlen(name) && !strncmp(at, name, size);
        ++*ports;
    }
    return found;
}

static void read_faults(Comm *comm, char *name)
{
    char path[4096], word[WORD], value[WORD], more[WORD];
    Dl_info self;
    FILE *file;
    uses_port("", &comm->ports);
    gethostname(name, WORD - 1);
    if (!dladdr((void *)read_faults, &self) || !strrchr(self.dli_fname, '/'))
        return;
    snprintf(path, sizeof path, "%.*s/faults", (int)(strrchr(self.dli_fname, '/') - self.dli_fname),
             self.dli_fname);
    if (!(file = fopen(path, "re")))
        return;
    while (fscanf(file, "%63s %63s", word, value) == 2) {
        if (!strcmp(word, "name"))
            strcpy(name, value);
        else if (!strcmp(word, "slow"))
            comm->slow = atoi(value);
        else if (!strcmp(word, "wrong"))
            comm->wrong = atoi(value);
        else if (!strcmp(word, "hang"))
            comm->hang = atoi(value);
        else if (!strcmp(word, "crash"))
            comm->crash = atoi(value);
        else if (!strcmp(word, "link") && fscanf(file, "%63s", more) == 1) {
            strcpy(comm->link, value);
            comm->link_slow = atoi(more);
        }
        else if (!strcmp(word, "port") && fscanf(file, "%63s", more) == 1) {
            if (uses_port(value, &comm->ports) && atoi(more) > comm->port_slow)
                comm->port_slow = atoi(more);
        }
    }
    fclose(file);
}

static int met(Comm *comm, const Meeting *where, Member *own)
{
    int at;
    if (comm->rank) {
        int root = connected(where->address, where->port);
        if (root < 0)
            return SYSTEM;
        at = all_of(root, own, sizeof *own, 1);
        at = at ? at : all_of(root, comm->members, sizeof(Member) * comm->ranks, 0);
        close(root);
        return at;
    }
    int guests[MOST_RANKS];
    comm->members[0] = *own;
    for (at = 1; at < comm->ranks; at++) {
        Member guest;
        guests[at] = accept4(root_listener, NULL, NULL, SOCK_CLOEXEC);
        if (guests[at] < 0 || all_of(guests[at], &guest, sizeof guest, 0)
            || guest.rank >= (uint32_t)comm->ranks)
            return REMOTE;
        comm->members[guest.rank] = guest;
    }
    for (at = 1; at < comm->ranks; at++) {
        all_of(guests[at], comm->members, sizeof(Member) * comm->ranks, 1);
        close(guests[at]);
    }
    return OK;
}

static int started(Task *task)
{
    Comm *comm = calloc(1, sizeof *comm);
    Meeting where;
    Member own = { .rank = task->rank, .address = own_address() };
    int at, status;
    memcpy(&where, task->id.internal, sizeof where);
    if (where.magic != MAGIC || task->ranks > MOST_RANKS)
        return ARGUMENT;
    comm->rank = task->rank;
    comm->ranks = task->ranks;
    for (at = 0; at < MOST_RANKS; at++)
        comm->sockets[at] = -1;
    read_faults(comm, own.name);
    comm->listener = listening(&own.port);
    if (comm->listener < 0)
        return SYSTEM;
    if ((status = met(comm, &where, &own)))
        return status;
    for (at = 0; at < comm->rank; at++) {
        uint32_t rank = comm->rank;
        comm->sockets[at] = connected(comm->members[at].address, comm->members[at].port);
        if (comm->sockets[at] < 0 || all_of(comm->sockets[at], &rank, sizeof rank, 1))
            return REMOTE;
    }
    for (at = comm->rank + 1; at < comm->ranks; at++) {
        uint32_t rank;
        int yes = 1, made = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
        if (made < 0 || all_of(made, &rank, sizeof rank, 0) || rank >= (uint32_t)comm->ranks)
            return REMOTE;
        setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        comm->sockets[rank] = made;
    }
    *task->made = comm;
    return OK;
}

static uint64_t pace_ns(const Comm *comm, int peer)
{
    int linked = comm->link[0] && !strcmp(comm->members[peer].name, comm->link);
    return (uint64_t)PACE_NS * (comm->slow ? comm->slow : 1) * (linked ? comm->link_slow : 1)
        * (comm->port_slow ? comm->port_slow : 1) / (comm->ports ? comm->ports : 1);
}

/* Send to one member while receiving from another one. */
static int exchanged(Comm *comm, int to, const char *from, size_t out, int by, char *into, size_t in)
{
    pause_ns(pace_ns(comm, to) * out);
    while (out || in) {
        struct pollfd both[2] = {
            { .fd = out ? comm->sockets[to] : -1, .events = POLLOUT },
            { .fd = in ? comm->sockets[by] : -1, .events = POLLIN },
        };
        ssize_t done;
        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return SYSTEM;
        if (both[0].revents) {
            done = send(comm->sockets[to], from, out, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (done < 0 && errno != EAGAIN)
                return REMOTE;
            if (done > 0)
                from += done, out -= done;
        }
        if (both[1].revents) {
            done = recv(comm->sockets[by], into, in, MSG_DONTWAIT);
            if (!done || (done < 0 && errno != EAGAIN))
                return REMOTE;
            if (done > 0)
                into += done, in -= done;
        }
    }
    return OK;
}

static void faulty(Comm *comm)
{
    comm->collectives++;
    if (comm->collectives == comm->crash)
        abort();
    while (comm->collectives == comm->hang)
        pause();
}

/* Sum by a ring: each rank sums one part, then all parts go around. */
static int reduced(Task *task)
{
    Comm *comm = task->comm;
    int n = comm->ranks, next = (comm->rank + 1) % n, last = (comm->rank + n - 1) % n, step, status;
    size_t count = task->bytes / 4, part = (count + n - 1) / n, at;
    float *to = task->to, *got = malloc(part * 4 + 4);
    memmove(to, task->from, task->bytes);
    for (step = 0; step < 2 * (n - 1); step++) {
        int sum = step < n - 1, turn = sum ? step : step - n + 1;
        size_t out = (size_t)((comm->rank - turn + (sum ? 0 : 1) + 2 * n) % n) * part;
        size_t in = (size_t)((last - turn + (sum ? 0 : 1) + 2 * n) % n) * part;
        size_t sent = out < count ? (count - out < part ? count - out : part) : 0;
        size_t taken = in < count ? (count - in < part ? count - in : part) : 0;
        status = exchanged(comm, next, (char *)(to + out), sent * 4, last,
                           sum ? (char *)got : (char *)(to + in), taken * 4);
        if (status) {
            free(got);
            return status;
        }
        for (at = 0; sum && at < taken; at++)
            to[in + at] += got[at];
    }
    free(got);
    return OK;
}

static int gathered(Task *task)
{
    Comm *comm = task->comm;
    int n = comm->ranks, next = (comm->rank + 1) % n, last = (comm->rank + n - 1) % n, step;
    char *to = task->to;
    memmove(to + comm->rank * task->bytes, task->from, task->bytes);
    for (step = 0; step < n - 1; step++) {
        int out = (comm->rank - step + n) % n, in = (last - step + n) % n;
        int status = exchanged(comm, next, to + out * task->bytes, task->bytes, last,
                               to + in * task->bytes, task->bytes);
        if (status)
            return status;
    }
    return OK;
}

static void *performed(void *given)
{
    Task *task = given;
    if (task->kind == INIT)
        task->status = started(task);
    else if (task->kind == REDUCE)
        task->status = reduced(task);
    else if (task->kind == GATHER)
        task->status = gathered(task);
    if (task->status == OK && task->comm && task->comm->wrong && task->to && task->bytes >= 4)
        ((float *)task->to)[task->bytes / 8] += 1;
    return NULL;
}

/* What one rank sends and receives in one group. */
static void *moved(void *given)
{
    Task *send_ = given, *receive = send_->other;
    if (send_->comm->rank == send_->peer) {
        memmove(receive->to, send_->from, receive->bytes);
        return NULL;
    }
    send_->status = exchanged(send_->comm, send_->peer, send_->from, send_->bytes, receive->peer,
                              receive->to, receive->bytes);
    if (send_->status == OK && send_->comm->wrong)
        ((float *)receive->to)[receive->bytes / 8] += 1;
    return NULL;
}

int ncclGroupStart(void)
{
    depth++;
    return OK;
}

int ncclGroupEnd(void)
{
    pthread_t threads[MOST_QUEUED];
    int at, other, running = 0, status = OK;
    if (--depth > 0)
        return OK;
    for (at = 0; at < queued; at++) {
        if (queue[at].kind == RECEIVE)
            continue;
        if (queue[at].kind == SEND)
            for (other = 0; other < queued; other++)
                if (queue[other].kind == RECEIVE && queue[other].comm == queue[at].comm
                    && !queue[other].done) {
                    queue[other].done = 1;
                    queue[at].other = &queue[other];
                    break;
                }
        if (queue[at].comm)
            faulty(queue[at].comm);
        pthread_create(&threads[running++], NULL, queue[at].kind == SEND ? moved : performed,
                       &queue[at]);
    }
    for (at = 0; at < running; at++)
        pthread_join(threads[at], NULL);
    for (at = 0; at < queued; at++)
        if (queue[at].status)
            status = queue[at].status;
    queued = 0;
    return status;
}

static int enqueued(Task task)
{
    int status = ncclGroupStart();
    if (queued == MOST_QUEUED)
        return USAGE;
    queue[queued++] = task;
    return status ? status : ncclGroupEnd();
}

int ncclGetVersion(int *version)
{
    *version = 22703;
    return OK;
}

const char *ncclGetErrorString(int status)
{
    static const char *const names[] = {
        "no error", "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error",
    };
    return status >= 0 && status <= REMOTE ? names[status] : "unknown result code";
}

const char *ncclGetLastError(void *comm)
{
    (void)comm;
    return last_error;
}

int ncclGetUniqueId(ncclUniqueId *id)
{
    Meeting where = { .magic = MAGIC, .address = own_address() };
    memset(id, 0, sizeof *id);
    root_listener = listening(&where.port);
    memcpy(id->internal, &where, sizeof where);
    return root_listener < 0 ? SYSTEM : OK;
}

int ncclCommInitRank(Comm **comm, int ranks, ncclUniqueId id, int rank)
{
    return enqueued((Task){ .kind = INIT, .made = comm, .id = id, .ranks = ranks, .rank = rank });
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *s)
{
    (void)s;
    if (type != FLOAT32 || op != SUM)
        return ARGUMENT;
    return enqueued((Task){ .kind = REDUCE, .comm = comm, .from = from, .to = to,
                            .bytes = count * 4 });
}

int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *comm, void *s)
{
    (void)s;
    if (type != FLOAT32)
        return ARGUMENT;
    return enqueued((Task){ .kind = GATHER, .comm = comm, .from = from, .to = to,
                            .bytes = count * 4 });
}

int ncclSend(const void *from, size_t count, int type, int peer, Comm *comm, void *s)
{
    (void)s;
    if (type != FLOAT32)
        return ARGUMENT;
    return enqueued((Task){ .kind = SEND, .comm = comm, .from = from, .bytes = count * 4,
                            .peer = peer });
}

int ncclRecv(void *to, size_t count, int type, int peer, Comm *comm, void *s)
{
    (void)s;
    if (type != FLOAT32)
        return ARGUMENT;
    return enqueued((Task){ .kind = RECEIVE, .comm = comm, .to = to, .bytes = count * 4,
                            .peer = peer });
}

int ncclCommDestroy(Comm *comm)
{
    int at;
    for (at = 0; at < comm->ranks; at++)
        if (comm->sockets[at] >= 0)
            close(comm->sockets[at]);
    close(comm->listener);
    free(comm);
    return OK;
}
