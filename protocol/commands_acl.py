"""Users and what they may do."""

from __future__ import annotations

from .spec import CommandSpec, Example, Parameter, integer, many, oneof, optional, string, word

_ADMIN = ("admin", "noscript", "loading", "stale")
_ASK = ("noscript", "loading", "stale")


def _acl(
    name: str,
    summary: str,
    reply: str,
    *parameters: Parameter,
    admin: bool = True,
    complexity: str = "O(1)",
    shows: tuple[str, str] | None = None,
) -> CommandSpec:
    return CommandSpec(
        name=f"ACL|{name}",
        summary=summary,
        group="server",
        reply=reply,
        parameters=parameters,
        flags=_ADMIN if admin else _ASK,
        categories=("admin", "slow", "dangerous") if admin else ("slow",),
        complexity=complexity,
        examples=(Example(*shows),) if shows else (),
    )


ACL_COMMANDS = (
    CommandSpec(
        name="ACL",
        summary="A container for commands about users and what they may do.",
        group="server",
        reply="Depends on the subcommand.",
        categories=("slow",),
        container=True,
    ),
    _acl(
        "CAT", "The categories of commands, or the commands of one.", "An array of names.",
        optional(string("category")), admin=False, shows=("ACL CAT kv", '1) "kv.prefix.blocks"'),
    ),
    _acl(
        "DELUSER", "Removes users and closes their connections.", "How many there were, an integer.",
        many(string("username")), shows=("ACL DELUSER alice", "(integer) 1"),
    ),
    _acl(
        "DRYRUN", "Whether a user may run a command line; it is not run.",
        "OK, or a text that says what it may not do.",
        string("username"), string("command"), optional(many(string("arg"))),
        shows=("ACL DRYRUN alice GET team2:key", '"User alice has no permissions to access the '
               "'team2:key' key\""),
    ),
    _acl(
        "GENPASS", "A password made by chance, of 256 bits or as many as asked for.", "Hexadecimal digits.",
        optional(integer("bits")), admin=False, shows=("ACL GENPASS 32", '"95a1f0c7"'),
    ),
    _acl(
        "GETUSER", "Everything about a user.",
        "A map: flags, passwords, commands, keys, channels, selectors; of a tenant's user also tenant, "
        "bytes, max-bytes; where they are limited connections, max-connections; null for no such user.",
        string("username"), complexity="O(N), N = rules", shows=("ACL GETUSER alice", '1) "flags"'),
    ),
    _acl("HELP", "Lists the subcommands.", "An array of lines.", admin=False),
    _acl(
        "LIST", "All users, each as the line of rules that would make it.", "An array of lines.",
        complexity="O(N), N = users", shows=("ACL LIST", '1) "user default on nopass ~* &* +@all"'),
    ),
    _acl(
        "LOG", "What was refused, newest first; RESET forgets it.", "An array of maps, or OK.",
        optional(oneof("operation", integer("count"), word("RESET"))),
        complexity="O(N), N = entries", shows=("ACL LOG RESET", "OK"),
    ),
    _acl(
        "SETUSER",
        "Makes or changes a user. A name of a namespace, session or key must match one of its patterns; "
        "with tenant=<name> it is that tenant's, which max-bytes=<size> limits; max-connections=<n> limits "
        "the user; (<rule> ...) is a selector.",
        "OK.", string("username"), optional(many(string("rule"))), complexity="O(N), N = rules",
        shows=("ACL SETUSER alice on >secret ~team1:* +@kv +@connection", "OK"),
    ),
    _acl(
        "USERS", "The names of all users.", "An array of names.", complexity="O(N), N = users",
        shows=("ACL USERS", '1) "default"'),
    ),
    _acl("WHOAMI", "Who this connection is.", "A name.", admin=False, shows=("ACL WHOAMI", '"default"')),
)  # fmt: skip
