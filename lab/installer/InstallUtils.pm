package InstallUtils;
# What the stand-ins for NVIDIA's installers written in perl have in common. Perl 5.26 and later do
# not look for it in the current directory, there as here: PERL5LIB=. helps.
use strict;
use warnings;
use Exporter 'import';
our @EXPORT = qw(settings copy_payload);

# What stand-in.conf says: CUDA, VERSION, GCC_MAX, DRIVER.
sub settings {
    my %found;
    open(my $file, '<', 'stand-in.conf') or die "stand-in.conf: $!\n";
    while (<$file>) { $found{$1} = $2 if /^(\w+)=(.*)$/ }
    return %found;
}

# Into a tree that may be there already; true if all of it is there now.
sub copy_payload {
    my ($path) = @_;
    return system('mkdir', '-p', $path) == 0 && system('cp', '-a', 'payload/.', "$path/") == 0;
}

1;
