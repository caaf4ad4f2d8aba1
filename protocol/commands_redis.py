"""The commands that make Redis tools feel at home: connection and server."""

from __future__ import annotations

from .spec import (
    CommandSpec,
    Example,
    after,
    block,
    integer,
    many,
    oneof,
    optional,
    pattern,
    string,
    word,
    words,
)

CONNECTION = ("connection",)
OPEN = ("noscript", "loading", "stale", "fast", "no_auth")
QUICK = ("loading", "stale", "fast")
CLIENT = ("noscript", "loading", "stale")
ADMIN = ("admin", "noscript", "loading", "stale")

_CONNECTION = (
    CommandSpec(
        name="AUTH",
        summary="Gives the password.",
        group="connection",
        reply="OK, or the error WRONGPASS.",
        parameters=(optional(string("username")), string("password")),
        flags=OPEN,
        categories=("fast", *CONNECTION),
        examples=(Example("AUTH secret", "OK"),),
    ),
    CommandSpec(
        name="ECHO",
        summary="Answers what it is given.",
        group="connection",
        reply="The message.",
        parameters=(string("message"),),
        flags=QUICK,
        categories=("fast", *CONNECTION),
        examples=(Example("ECHO hello", '"hello"'),),
    ),
    CommandSpec(
        name="HELLO",
        summary="Chooses the protocol, and may give the password and the connection's name in one step.",
        group="connection",
        reply="A map: server, version, proto, id, mode, role, modules. NOPROTO for a protocol but 2 and 3.",
        parameters=(
            optional(
                block(
                    "arguments",
                    integer("protover"),
                    optional(after("AUTH", block("auth", string("username"), string("password")))),
                    optional(after("SETNAME", string("clientname"))),
                )
            ),
        ),
        flags=OPEN,
        categories=("fast", *CONNECTION),
        examples=(Example("HELLO 3", '1# "server" => "redis"'),),
    ),
    CommandSpec(
        name="PING",
        summary="Asks whether the server is there.",
        group="connection",
        reply="PONG, or the message.",
        parameters=(optional(string("message")),),
        flags=QUICK,
        categories=("fast", *CONNECTION),
        examples=(Example("PING", "PONG"), Example("PING hello", '"hello"')),
    ),
    CommandSpec(
        name="QUIT",
        summary="Closes the connection after the replies that are due.",
        group="connection",
        reply="OK.",
        flags=OPEN,
        categories=("fast", *CONNECTION),
        examples=(Example("QUIT", "OK"),),
    ),
    *(
        CommandSpec(
            name=name,
            summary=f"Of a cluster's connections, {what}: refused, as by any server outside a cluster.",
            group="connection",
            reply="An error.",
            flags=QUICK,
            categories=("fast", *CONNECTION),
            examples=(Example(name, "(error) ERR This instance has cluster support disabled"),),
        )
        for name, what in (("READONLY", "to read from a replica"), ("READWRITE", "to read no more from it"))
    ),
    CommandSpec(
        name="RESET",
        summary="Makes the connection as it was when it was new: protocol 2, no name, not authenticated.",
        group="connection",
        reply="RESET.",
        flags=OPEN,
        categories=("fast", *CONNECTION),
        examples=(Example("RESET", "RESET"),),
    ),
    CommandSpec(
        name="SELECT",
        summary="Accepts database 0, the only one.",
        group="connection",
        reply="OK, or an error for another number.",
        parameters=(integer("index"),),
        flags=QUICK,
        categories=("fast", *CONNECTION),
        examples=(Example("SELECT 0", "OK"),),
    ),
)

_ON_OFF = oneof("enabled", *words("ON OFF"))

_CLIENT = (
    CommandSpec(
        name="CLIENT",
        summary="A container for commands about connections.",
        group="connection",
        reply="Depends on the subcommand.",
        categories=("slow",),
        container=True,
    ),
    CommandSpec(
        name="CLIENT|GETNAME",
        summary="The name of this connection.",
        group="connection",
        reply="The name, or null.",
        flags=CLIENT,
        categories=("slow", *CONNECTION),
        examples=(Example("CLIENT GETNAME", '"loader"'),),
    ),
    CommandSpec(
        name="CLIENT|HELP",
        summary="Lists the subcommands.",
        group="connection",
        reply="An array of lines.",
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="CLIENT|ID",
        summary="The number of this connection. Numbers are given in order and never again.",
        group="connection",
        reply="An integer.",
        flags=CLIENT,
        categories=("slow", *CONNECTION),
        examples=(Example("CLIENT ID", "(integer) 7"),),
    ),
    CommandSpec(
        name="CLIENT|INFO",
        summary="What is known of this connection.",
        group="connection",
        reply="A line of name=value fields.",
        flags=CLIENT,
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="CLIENT|KILL",
        summary="Closes connections.",
        group="connection",
        reply="OK for an address; with filters, the number of connections closed.",
        parameters=(
            oneof(
                "filter",
                string("ip:port"),
                many(
                    oneof(
                        "new-format",
                        after("ID", integer("client-id")),
                        after("TYPE", oneof("client-type", word("NORMAL"))),
                        after("USER", string("username")),
                        after("ADDR", string("ip:port")),
                        after("LADDR", string("ip:port")),
                        after("SKIPME", oneof("yes-no", *words("YES NO"))),
                    )
                ),
            ),
        ),
        flags=ADMIN,
        categories=("admin", "slow", "dangerous", *CONNECTION),
        complexity="O(N), N = connections",
        examples=(Example("CLIENT KILL ID 7", "(integer) 1"),),
    ),
    CommandSpec(
        name="CLIENT|LIST",
        summary="What is known of all connections.",
        group="connection",
        reply="A line of name=value fields for each.",
        parameters=(
            optional(after("TYPE", oneof("client-type", word("NORMAL")))),
            optional(after("ID", many(integer("client-id")))),
        ),
        flags=ADMIN,
        categories=("admin", "slow", "dangerous", *CONNECTION),
        complexity="O(N), N = connections",
    ),
    CommandSpec(
        name="CLIENT|NO-EVICT",
        summary="Accepted for clients that ask for it: no connection is closed to save memory.",
        group="connection",
        reply="OK.",
        parameters=(_ON_OFF,),
        flags=ADMIN,
        categories=("admin", "slow", "dangerous", *CONNECTION),
    ),
    CommandSpec(
        name="CLIENT|NO-TOUCH",
        summary="Whether what this connection reads counts as use when something has to be evicted.",
        group="connection",
        reply="OK.",
        parameters=(_ON_OFF,),
        flags=CLIENT,
        categories=("slow", *CONNECTION),
        examples=(Example("CLIENT NO-TOUCH ON", "OK"),),
    ),
    CommandSpec(
        name="CLIENT|REPLY",
        summary="Turns the replies on this connection off and on, or skips the next.",
        group="connection",
        reply="OK for ON, else nothing.",
        parameters=(oneof("action", *words("ON OFF SKIP")),),
        flags=CLIENT,
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="CLIENT|SETINFO",
        summary="The client's library and its version, for CLIENT LIST.",
        group="connection",
        reply="OK.",
        parameters=(oneof("attr", after("LIB-NAME", string("libname")), after("LIB-VER", string("libver"))),),
        flags=CLIENT,
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="CLIENT|SETNAME",
        summary="Names this connection.",
        group="connection",
        reply="OK.",
        parameters=(string("connection-name"),),
        flags=CLIENT,
        categories=("slow", *CONNECTION),
        examples=(Example("CLIENT SETNAME loader", "OK"),),
    ),
)

_COMMAND = (
    CommandSpec(
        name="COMMAND",
        summary="Everything about all commands.",
        group="server",
        reply="An array with one entry for each command.",
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
        complexity="O(N), N = commands",
        container=True,
        works_alone=True,
    ),
    CommandSpec(
        name="COMMAND|COUNT",
        summary="How many commands there are.",
        group="server",
        reply="An integer.",
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="COMMAND|DOCS",
        summary="What commands are for and which arguments they take.",
        group="server",
        reply="A map from the command's name to a map of its documentation.",
        parameters=(optional(many(string("command-name"))),),
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
        complexity="O(N), N = commands asked for",
    ),
    CommandSpec(
        name="COMMAND|GETKEYS",
        summary="Which arguments of a command line name sessions, namespaces or keys.",
        group="server",
        reply="An array of names.",
        parameters=(string("command"), optional(many(string("arg")))),
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
        complexity="O(N), N = arguments",
        examples=(Example("COMMAND GETKEYS V.FETCH demo_pk 0 RANGE 0 8", '1) "demo_pk"'),),
    ),
    CommandSpec(
        name="COMMAND|HELP",
        summary="Lists the subcommands.",
        group="server",
        reply="An array of lines.",
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
    ),
    CommandSpec(
        name="COMMAND|INFO",
        summary="Entries of single commands.",
        group="server",
        reply="An array with an entry, or null, for each name.",
        parameters=(optional(many(string("command-name"))),),
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
        complexity="O(N), N = commands asked for",
    ),
    CommandSpec(
        name="COMMAND|LIST",
        summary="The names of the commands.",
        group="server",
        reply="An array of names.",
        parameters=(
            optional(
                after(
                    "FILTERBY",
                    oneof(
                        "filterby",
                        after("MODULE", string("module-name")),
                        after("ACLCAT", string("category")),
                        after("PATTERN", pattern("pattern")),
                    ),
                )
            ),
        ),
        flags=("loading", "stale"),
        categories=("slow", *CONNECTION),
        complexity="O(N), N = commands",
        examples=(Example("COMMAND LIST FILTERBY PATTERN v.drop", '1) "v.drop"'),),
    ),
)

_SERVER = (
    CommandSpec(
        name="CONFIG",
        summary="A container for commands about the settings.",
        group="server",
        reply="Depends on the subcommand.",
        categories=("slow",),
        container=True,
    ),
    CommandSpec(
        name="CONFIG|GET",
        summary="The settings in force.",
        group="server",
        reply="A map from name to value.",
        parameters=(many(pattern("parameter")),),
        flags=ADMIN,
        categories=("admin", "slow", "dangerous"),
        complexity="O(N), N = settings",
        examples=(Example("CONFIG GET max-bytes", '1) "max-bytes"'),),
    ),
    CommandSpec(
        name="INFO",
        summary="Figures about the server.",
        group="server",
        reply="Lines of name:value, in sections.",
        parameters=(optional(many(string("section"))),),
        flags=("loading", "stale"),
        categories=("slow", "dangerous"),
        examples=(Example("INFO server", "# Server"),),
    ),
    CommandSpec(
        name="SHUTDOWN",
        summary="Stops the server: no new commands, running ones are finished, everything is on disk.",
        group="server",
        reply="None: the connection is closed.",
        parameters=(
            optional(oneof("save-selector", *words("NOSAVE SAVE"))),
            optional(word("NOW")),
            optional(word("FORCE")),
        ),
        flags=("admin", "noscript", "loading", "stale"),
        categories=("admin", "slow", "dangerous"),
    ),
    CommandSpec(
        name="TIME",
        summary="The server's clock.",
        group="server",
        reply="An array of two: seconds since 1970, and microseconds in that second.",
        flags=("loading", "stale", "fast"),
        categories=("fast",),
        examples=(Example("TIME", '1) "1767225600"'),),
    ),
)

REDIS_COMMANDS = (*_CONNECTION, *_CLIENT, *_COMMAND, *_SERVER)
