#!/usr/bin/perl
# Stand-in for NVIDIA's install_patch.pl, which replaces some libraries of a CUDA toolkit that is
# there already. Of gpufleet's lab; not made by NVIDIA.
use strict;
use warnings;
use Getopt::Long qw(:config no_auto_abbrev no_ignore_case);
require './InstallUtils.pm';
InstallUtils->import();

my %is = settings();
my %option = (installdir => ($ENV{STAND_IN_ROOT} // '') . "/usr/local/cuda-$is{CUDA}");
my $usage = "Usage: --silent --accept-eula [--installdir=<PATH>]"
    . " (stand-in of the gpufleet lab for CUDA $is{VERSION})\n";
GetOptions(\%option, qw(silent accept-eula installdir=s help)) or die $usage;
if ($option{help}) { print $usage; exit 0 }

print "Welcome to the CUDA Patcher.\n";
die "stand-in: there are no questions, only --silent --accept-eula\n"
    if !$option{silent} || !$option{'accept-eula'};

my $path = $option{installdir};
my $versions = "$path/version.txt";
my $said = '';
if (open(my $file, '<', $versions)) { local $/; $said = <$file> }
die "Error: no installation of CUDA $is{CUDA} was found in $path.\n"
    if $said !~ /^CUDA Version \Q$is{CUDA}\E\./;
die "Error: could not install into $path.\n" if !copy_payload($path);

my $line = "CUDA Patch Version $is{VERSION}\n";
if (index($said, $line) < 0) {
    open(my $file, '>>', $versions) or die "Error: $versions: $!\n";
    print $file $line;
    close $file or die "Error: $versions: $!\n";
}
print "Installation complete!\nInstallation directory: $path\n";
