#!/usr/bin/perl
# Stand-in for NVIDIA's cuda-installer.pl (CUDA 10.0 and earlier): its options, its refusals, its
# words and what it leaves on a system. Of gpufleet's lab; not made by NVIDIA.
#
# STAND_IN_ROOT, if set, goes before every path outside the toolkit. It is for tests alone.
use strict;
use warnings;
use Getopt::Long qw(:config no_auto_abbrev no_ignore_case);
use InstallUtils;

my %is = settings();
my $root = $ENV{STAND_IN_ROOT} // '';
my %option = (toolkitpath => "$root/usr/local/cuda-$is{CUDA}");

sub usage {
    return <<"END";
Options:
   --silent                 Performs an installation with no further user-input. EULA is accepted.
   --driver                 Install the CUDA Driver.
   --toolkit                Install the CUDA Toolkit.
   --toolkitpath=<PATH>     Install to <PATH>. Default: /usr/local/cuda-$is{CUDA}
   --samples                Install the CUDA Samples.
   --samplespath=<PATH>
   --uninstall              Uninstall the CUDA Driver.
   --verbose                More output in the log.
   --extract=<PATH>         Extract to <PATH> without installing.
   --override               Overrides the installation checks (compiler, lib, etc).
   --tmpdir=<PATH>          Performs any temporary actions within <PATH>.
   --no-opengl-libs         Do not install the driver's OpenGL libraries.
   --run-nvidia-xconfig
   --kernel-source-path=<PATH>
   --help                   Print help message.
(stand-in of the gpufleet lab for CUDA $is{CUDA})
END
}

GetOptions(
    \%option, qw(silent driver toolkit toolkitpath=s samples samplespath=s uninstall verbose
        extract=s override tmpdir=s no-opengl-libs run-nvidia-xconfig kernel-source-path=s help)
) or die usage();
if ($option{help}) { print usage(); exit 0 }
if ($option{extract}) { exit(copy_payload($option{extract}) ? 0 : 1) }
die "stand-in: there is no menu, only --silent\n" if !$option{silent};
die "stand-in: nothing was selected; --silent needs --toolkit\n"
    if !$option{toolkit} && !$option{driver};

system('mkdir', '-p', "$root/tmp");
my $log_path = "$root/tmp/cuda_install_$$.log";
open(my $log, '>', $log_path) or die "$log_path: $!\n";

sub say_both { print @_; print $log @_ }

sub finish {
    my ($status, $toolkit, $hints) = @_;
    my $driver = $option{driver} ? 'Installation Failed' : 'Not Selected';
    say_both(<<"END");

===========
= Summary =
===========

Driver:   $driver
Toolkit:  $toolkit
Samples:  Not Selected

${hints}Logfile is $log_path
END
    exit $status;
}

my $version = `gcc -dumpfullversion -dumpversion 2>/dev/null` // '';
chomp $version;
if (!$option{override}) {
    if ($version eq '') {
        say_both("Missing gcc. gcc is required to continue.\n");
        finish(1, 'Installation Failed. Missing Compiler.', '');
    }
    if ((split /\./, $version)[0] > $is{GCC_MAX}) {
        say_both("Error: unsupported compiler: $version."
                . " Use --override to override this check.\n");
        finish(1, 'Installation Failed. Using unsupported Compiler.', '');
    }
}
finish(1, 'Not Selected', '') if $option{driver};

my $path = $option{toolkitpath};
say_both("Installing the CUDA Toolkit in $path ...\n");
finish(1, 'Installation Failed', '') if !copy_payload($path);

my $uninstaller = "$path/bin/uninstall_cuda_$is{CUDA}.pl";
open(my $script, '>', $uninstaller) or finish(1, 'Installation Failed', '');
print $script <<"END";
#!/usr/bin/perl
# Stand-in of the gpufleet lab.
unlink '$root/usr/local/cuda' if (readlink('$root/usr/local/cuda') // '') eq '$path';
exec 'rm', '-rf', '$path';
END
close $script;
chmod 0755, $uninstaller;
if ($> == 0) {
    system('mkdir', '-p', "$root/usr/local");
    system('ln', '-sfn', $path, "$root/usr/local/cuda");
}
my ($least) = split /\./, $is{DRIVER};
finish(0, "Installed in $path", <<"END");
Please make sure that
 -   PATH includes $path/bin
 -   LD_LIBRARY_PATH includes $path/lib64, or, add $path/lib64 to /etc/ld.so.conf and run ldconfig as root

To uninstall the CUDA Toolkit, run the uninstall script in $path/bin

***WARNING: Incomplete installation! This installation did not install the CUDA Driver. A driver of version at least $least.00 is required for CUDA $is{CUDA} functionality to work.
To install the driver using this installer, run the following command, replacing <CudaInstaller> with the name of this run file:
    sudo <CudaInstaller>.run -silent -driver

END
