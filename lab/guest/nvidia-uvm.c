// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// A stand-in for NVIDIA's second kernel module, which uses the first. It drives nothing.
#include <linux/module.h>

extern int nvidia_standin;

static int __init begin(void)
{
	nvidia_standin++;
	return 0;
}

static void __exit end(void)
{
	nvidia_standin--;
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STANDIN_VERSION);
MODULE_DESCRIPTION("gpufleet's stand-in for the NVIDIA driver; drives nothing");
