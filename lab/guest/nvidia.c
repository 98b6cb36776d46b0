// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
// A stand-in for NVIDIA's kernel module, for lab machines without a GPU: a version in /proc, and a
// device that keeps the module in use while somebody has it open. It drives nothing.
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

static const struct file_operations operations = {.owner = THIS_MODULE};
static struct miscdevice node = {
	.minor = MISC_DYNAMIC_MINOR, .name = "nvidia0", .fops = &operations, .mode = 0666};

static int tell(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " STANDIN_VERSION
		       "  (gpufleet's stand-in)\n");
	return 0;
}

// What nvidia-uvm takes from it, so that the one cannot go before the other.
int nvidia_standin;
EXPORT_SYMBOL_GPL(nvidia_standin);

static int __init begin(void)
{
	proc_mkdir("driver/nvidia", NULL);
	proc_create_single("driver/nvidia/version", 0444, NULL, tell);
	return misc_register(&node);
}

static void __exit end(void)
{
	misc_deregister(&node);
	remove_proc_subtree("driver/nvidia", NULL);
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(STANDIN_VERSION);
MODULE_DESCRIPTION("gpufleet's stand-in for the NVIDIA driver; drives nothing");
