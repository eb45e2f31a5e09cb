"""The interactive debugger of ``minillama step``: commands, and where to stop."""

from __future__ import annotations

import bdb
import cmd
import inspect
import pdb
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from minillama.cli.output import visible, visible_text
from minillama.errors import InvalidInputError, MinillamaError
from minillama.generate import LanguageModel
from minillama.trace import Recording, Stepper, log_softmax
from minillama.trace.blocks import block_of
from minillama.trace.conditions import above, differs_from, not_finite
from minillama.trace.inspection import summary
from minillama.trace.recording import Values
from minillama.trace.stepper import Condition

_SLICE = re.compile(r"-?\d*(:-?\d*)?(\s*,\s*-?\d*(:-?\d*)?)*")
_MOST_SHOWN = 400
_WIDTH = 79
LLAMA_CPP = "llama.cpp"  # in place of a recording's file


@dataclass(frozen=True)
class Breakpoint:
    """Where to stop: at values of these names, if the condition holds."""

    text: str
    names: frozenset[str]
    condition: Condition | None = None

    def holds(self, stepper: Stepper) -> bool:
        """Whether the current value is one to stop at."""
        return stepper.name in self.names and (self.condition is None or self.condition(stepper.name, stepper.value))


class _Pdb(pdb.Pdb):
    """Pdb for one kernel after the other; leaving it leaves them all."""

    left = False

    def set_quit(self) -> None:
        """Remember it: pdb itself returns as if the kernel had come to its end."""
        self.left = True
        super().set_quit()

    def call(self, kernel: Callable[..., Any], *arguments: Any) -> None:
        """Go into a kernel."""
        self.runcall(kernel, *arguments)
        if self.left:
            raise bdb.BdbQuit


class Debugger(cmd.Cmd):
    """Reads commands and does them.

    Parameters
    ----------
    model
        The model.
    stepper
        The pass.
    stdin, stdout
        Where commands come from, and where answers go.
    echo
        Whether the commands are a file's: they are shown, and the first mistake ends them.
    llama_cpp
        Records llama.cpp's run, if it is asked for.
    """

    prompt = "(step) "

    def __init__(
        self, model: LanguageModel, stepper: Stepper, stdin: IO[str], stdout: IO[str], *, echo: bool,
        llama_cpp: Callable[[], Recording] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = not echo
        self.prompt = "" if echo else self.prompt
        self.model, self.stepper, self.failed = model, stepper, False
        self._echo, self._llama_cpp = echo, llama_cpp
        self._recordings: dict[str, Recording] = {}
        self._breakpoints: dict[int, Breakpoint] = {}

    def say(self, text: str) -> None:
        """Print a line, or several."""
        self.stdout.write(visible_text(text) + "\n")

    def precmd(self, line: str) -> str:
        """Leave out comments; show what a file asks for."""
        line = line.partition("#")[0].strip()
        if self._echo and line and line != "EOF":
            self.say(f"(step) {line}")
        return line

    def onecmd(self, line: str) -> bool:
        """Do a command; what is wrong with it is said, and a file of commands ends there."""
        try:
            return bool(super().onecmd(line))
        except (MinillamaError, IndexError) as error:
            self.say(f"error: {error}")
            self.failed = True
            return self._echo

    def emptyline(self) -> bool:
        """Do nothing on an empty line."""
        return False

    def default(self, line: str) -> None:
        """Refuse what is no command."""
        raise InvalidInputError(f"no command {line.partition(' ')[0]!r}, try help")

    def do_help(self, argument: str) -> None:
        """help [COMMAND]: what a command does, or what each does."""
        if argument:
            if not hasattr(self, f"do_{argument}"):
                raise InvalidInputError(f"no command {argument!r}, try help")
            self.say(_help_of(getattr(self, f"do_{argument}")))
            return
        commands = {method for name, method in vars(Debugger).items() if name.startswith("do_")}
        firsts = sorted(_help_of(command).partition("\n")[0] for command in commands if command is not Debugger.do_EOF)
        self.say("\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in firsts))
        self.say("n, u, c, b: next, until, continue, break; q and quit: abort.")

    def do_next(self, argument: str) -> None:
        """next [N]: run to the next value, or N values on."""
        for _ in range(_number(argument, "1", int)):
            self.stepper.next()
        self._show()

    def do_until(self, argument: str) -> None:
        """until POINT: run to the next value of that name, pattern or alias."""
        self._ran_to(self.stepper.until(_wanted(argument, "a point")))

    def do_continue(self, _argument: str) -> None:
        """continue: run to the next breakpoint, or to the end."""
        if not self._breakpoints:
            raise InvalidInputError("there are no breakpoints, see: help break")

        def stop(_name: str, _value: object) -> bool:
            return any(point.holds(self.stepper) for point in self._breakpoints.values())

        name = self.stepper.until(condition=stop)
        for number, point in self._breakpoints.items():
            if name is not None and point.holds(self.stepper):
                self.say(f"breakpoint {number}: {point.text}")
        self._ran_to(name)

    def do_pdb(self, _argument: str) -> None:
        """pdb: go with pdb into the kernels that make the next value; its own "continue" leads out of each.

        Kernels must be plain Python: NUMBA_DISABLE_JIT=1 minillama step ... --backend reference
        """
        streams = (self.stdin, self.stdout) if self._echo else (None, None)
        inner = _Pdb(stdin=streams[0], stdout=streams[1], nosigint=True, readrc=not self._echo)
        try:
            self.stepper.next(inner.call)
        except bdb.BdbQuit:
            self.say("left pdb before the value was there")
        else:
            self._show()

    def do_back(self, argument: str) -> None:
        """back [POINT]: return to an earlier value, the one before if none is named."""
        if self.stepper.back(argument or None) is None:
            self.say("before the first operation")
        else:
            self._show()

    def do_break(self, argument: str) -> None:
        """break POINT | layer N | nan | above X | differs FILE: stop there.

        nan is the first NaN or infinity; above X an absolute value over X; differs FILE the first value that is not
        that of a recording made by "minillama trace --save", or of llama.cpp if FILE is llama.cpp ("minillama step
        --llama-cpp FOLDER"). A point may come before the last three: break blk.*.l_out above 100. Without anything:
        list the breakpoints.
        """
        if argument:
            number = max(self._breakpoints, default=0) + 1
            self._breakpoints[number] = self._breakpoint(argument)
            self.say(f"breakpoint {number}: {argument}")
            return
        for number, point in self._breakpoints.items():
            self.say(f"{number}: {point.text}")

    def do_delete(self, argument: str) -> None:
        """delete N: remove a breakpoint."""
        if self._breakpoints.pop(_number(argument, "", int), None) is None:
            raise InvalidInputError(f"no breakpoint {argument!r}")

    def do_value(self, argument: str) -> None:
        """value [ROWS, COLUMNS, ...]: the current value, or a part of it as numpy counts: value -1, :8."""
        value = self.stepper.value[_index(argument)]
        if np.size(value) > _MOST_SHOWN:
            self.say(str(summary(value)))
        else:
            self.say(np.array2string(np.asarray(value), precision=6, max_line_width=_WIDTH))

    def do_show(self, argument: str) -> None:
        """show [POINT]: the current value, or an earlier one, in a few numbers."""
        name = argument or self.stepper.name
        self.say(_described(name, self.stepper[name]))

    def do_inputs(self, _argument: str) -> None:
        """inputs: what the current value was made from."""
        for name, value in self.stepper.inputs().items():
            self.say(_described(name, value))

    def do_replace(self, argument: str) -> None:
        """replace zero | scale X | X [ROWS, COLUMNS, ...]: go on with another value in place of the current one."""
        what, _, rest = argument.partition(" ")
        value = self.stepper.value.copy()
        if what == "zero":
            value[_index(rest)] = 0
        elif what == "scale":
            factor, _, rest = rest.partition(" ")
            value[_index(rest)] *= np.float32(_number(factor, "", float))
        else:
            value[_index(rest)] = _number(what, "", float)
        self.stepper.replace(value)
        self._show()

    def do_where(self, _argument: str) -> None:
        """where: the line of the model's file that asks for the current value."""
        self.say(self.stepper.where())

    def do_source(self, _argument: str) -> None:
        """source: the kernel that made the current value."""
        self.say(f"{self.stepper.operation.name}, {self.stepper.operation.n_items} items:\n{self.stepper.source()}")

    def do_diff(self, argument: str) -> None:
        """diff FILE: how far the current value is from that of a recording, or of llama.cpp (see break)."""
        self.say(str(self.stepper.diff(self._recording(argument))))

    def do_weight(self, argument: str) -> None:
        """weight NAME [ROW BLOCK]: a tensor of the file, or one of its packed blocks, field by field."""
        name, *place = _wanted(argument, "a tensor's name").split()
        if name not in self.model.weights:
            raise InvalidInputError(f"the model has no tensor {name!r}")
        weight = self.model.weights[name]
        if not place:
            self.say(repr(weight))
            return
        row, index = (_number(text, "", int) for text in (*place, "0")[:2])
        self.say(str(block_of(weight, row, index)))

    def do_points(self, argument: str) -> None:
        """points [PATTERN]: names of the values of this pass."""
        names = self.stepper.points.resolve(argument) if argument else self.stepper.names
        self.say("\n".join(name for name in names if name in self.stepper.names))

    def do_top(self, argument: str) -> None:
        """top [K]: the likeliest next tokens at the last position, once the logits are there."""
        logp = log_softmax(self.stepper["result_output"][-1])
        for token in np.argsort(-logp, kind="stable")[: _number(argument, "5", int)]:
            text = self.model.tokenizer.decode([int(token)], continues=True)
            self.say(f"{np.exp(logp[token]):7.2%}  {token:6}  {visible(text)!r}")

    def do_finish(self, _argument: str) -> bool:
        """finish: run to the end, show the likeliest tokens, and leave."""
        while not self.stepper.done:
            self.stepper.next()
        self.do_top("")
        self.stepper.finish()
        return True

    def do_abort(self, _argument: str) -> bool:
        """abort: leave; nothing is kept."""
        self.stepper.abort()
        return True

    do_n, do_u, do_c, do_b, do_q, do_quit = do_next, do_until, do_continue, do_break, do_abort, do_abort

    def do_EOF(self, _argument: str) -> bool:  # noqa: N802 - the name that cmd asks for
        """End of the commands: leave."""
        return self.do_abort("")

    def _show(self) -> None:
        stepper = self.stepper
        self.say(_described(stepper.name, stepper.value))

    def _ran_to(self, name: str | None) -> None:
        if name is None:
            self.say("the pass came to its end")
        self._show()

    def _breakpoint(self, text: str) -> Breakpoint:
        words, everything = text.split(), frozenset(self.stepper.names)
        if words[0] == "layer" and len(words) == 2:
            first = next((n for n in self.stepper.names if n.startswith(f"blk.{words[1]}.")), None)
            if first is None:
                raise InvalidInputError(f"the model has no layer {words[1]!r}")
            return Breakpoint(text, frozenset([first]))
        if words[0] not in _CONDITIONS:
            names, words = frozenset(self.stepper.points.resolve(words[0])), words[1:]
        else:
            names = everything
        if not words:
            return Breakpoint(text, names)
        make = _CONDITIONS.get(words[0])
        if make is None:
            raise InvalidInputError(f"no condition {words[0]!r}, there are {', '.join(_CONDITIONS)}")
        return Breakpoint(text, names, make(self, " ".join(words[1:])))

    def _recording(self, name: str) -> Recording:
        if name not in self._recordings:
            if name != LLAMA_CPP:
                self._recordings[name] = Recording.load(_wanted(name, "a file"))
            elif self._llama_cpp is not None:
                self._recordings[name] = self._llama_cpp()
            else:
                raise InvalidInputError("where llama.cpp is has to be given: minillama step --llama-cpp FOLDER")
        return self._recordings[name]


_CONDITIONS: dict[str, Callable[[Debugger, str], Condition]] = {
    "nan": lambda _debugger, _argument: not_finite,
    "above": lambda _debugger, argument: above(_number(argument, "", float)),
    "differs": lambda debugger, argument: differs_from(debugger._recording(argument)),
}


def _help_of(command: object) -> str:
    return inspect.cleandoc(command.__doc__ or "")


def _described(name: str, value: Values) -> str:
    """A value in two lines that most terminals have room for."""
    found = summary(value)
    return f"{name}: {found.kind}\n  {found.numbers}"


def _wanted(argument: str, what: str) -> str:
    if not argument:
        raise InvalidInputError(f"{what} is wanted")
    return argument


def _number(text: str, default: str, kind: Callable[[str], float]) -> int:
    try:
        return kind(text or default)  # type: ignore[return-value]
    except ValueError:
        raise InvalidInputError(f"found {text!r}, wanted a number") from None


def _index(text: str) -> tuple[int | slice, ...]:
    """An index as numpy writes it: ``-1, :8``."""
    text = text.strip()
    if not text:
        return ()
    if not _SLICE.fullmatch(text):
        raise InvalidInputError(f"found {text!r}, wanted rows and columns such as: -1, :8")
    parts: list[int | slice] = []
    for part in text.split(","):
        ends = [int(end) if end.strip() else None for end in part.split(":")]
        parts.append(slice(*ends) if len(ends) > 1 else int(part))
    return tuple(parts)
