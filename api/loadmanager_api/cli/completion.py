"""`loadmanager completion SHELL`: prints the shell's completion script. Click does the work, except for bash.

Bash breaks words at colons, and a broker's name has one. So bash's script passes the line as typed, and removes from
the answers what bash will put before them.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class, split_arg_string

from loadmanager_api.cli.printing import echo

PROGRAM = "loadmanager"
VARIABLE = "_LOADMANAGER_COMPLETE"
"""Where click's own scripts, for zsh and fish, put the question."""

HOW = {
    "bash": "echo 'eval \"$(loadmanager completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(loadmanager completion zsh)\"' >> ~/.zshrc",
    "fish": "loadmanager completion fish > ~/.config/fish/completions/loadmanager.fish",
}

BASH = """\
%(complete_func)s() {
    local line=${COMP_LINE:0:COMP_POINT} word skip= type value
    word=${line##*[[:space:]]}
    [[ $COMP_WORDBREAKS == *=* ]] && word=${word##*=}
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && skip=${word%%"${word##*:}"}
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                [[ $value == */ ]] && compopt -o nospace
                COMPREPLY+=("${value#"$skip"}") ;;
        esac
    done < <(COMP_LINE=$line "$1" completion bash --answer 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashLine(ShellComplete):
    """Completes the line that bash passes as typed, up to the cursor."""

    name = "bash"
    source_template = BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The finished words, and the one being typed; empty if a new one begins."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """One line, as the script reads it."""
        return f"{item.type},{item.value}"


@click.command(epilog="\b\nTo use it:\n" + "\n".join(f"  {how}" for how in HOW.values()))
@click.argument("shell", type=click.Choice(list(HOW)))
@click.option("--answer", is_flag=True, hidden=True, help="What the script of bash asks for.")
@click.pass_context
def completion(ctx: click.Context, shell: str, answer: bool) -> None:
    """Print the script with which a shell completes commands, options and, if a broker answers, names."""
    found = BashLine if shell == "bash" else get_completion_class(shell)
    assert found is not None, "click knows these shells"
    machinery = found(ctx.find_root().command, {}, PROGRAM, VARIABLE)
    echo(machinery.complete() if answer else machinery.source(), nl=answer)
