"""Accounts of the host, by name and by number."""

import os


class NoAccountError(RuntimeError):
    """There is no account of this name."""


def account(host, name):
    """Number, group and all groups of an account, by the planted files where there are any."""
    if host.real:
        import pwd

        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise NoAccountError("there is no account %s" % name) from None
        return entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)
    users, groups = [
        [line.split(":") for line in (host.text_or_none(f) or "").splitlines()]
        for f in ("/etc/passwd", "/etc/group")
    ]
    own = [row for row in users if row[0] == name]
    if not own:
        raise NoAccountError("there is no account %s" % name)
    group = int(own[0][3])
    return (
        int(own[0][2]),
        group,
        [group] + [int(row[2]) for row in groups if name in row[3].split(",")],
    )


def account_name(number):
    import pwd

    return pwd.getpwuid(number).pw_name


def name_of(host, number):
    """An account's name, of the planted file where there is one; its number where it has none."""
    if host.real:
        try:
            return account_name(number)
        except KeyError:
            return str(number)
    rows = [line.split(":") for line in (host.text_or_none("/etc/passwd") or "").splitlines()]
    return next((row[0] for row in rows if row[2:3] == [str(number)]), str(number))
