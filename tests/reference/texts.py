"""Texts on which models are compared with llama.cpp: languages, code, symbols, a chat turn, one letter, a long one."""

from __future__ import annotations

_LONG = """\
The lighthouse at the end of the pier had not been lit for eleven years when Marta came back to the island. She \
remembered the beam as something solid, a white arm that swept over the harbour every nine seconds and made the wet \
roofs shine. Without it the evenings seemed to have lost their clock. People went to bed when they were tired, the \
fishing boats stayed in when the fog was thick, and nobody could say any more exactly where the rocks began.

Her grandfather had kept the light for thirty-one years. His notebooks stood in a row on the kitchen shelf, one for \
each year, and in each of them he had written down the weather, the ships, the hours of burning and the litres of \
oil. On the last page of every book was a table: hours, litres, litres per hour, and the difference from the year \
before. The figures were never quite the same, and under the table he always tried to explain why. A leaking valve \
in 1974, a new mantle in 1980, a winter so clear in 1987 that one could see the mainland, and with it the other \
light, answering.

"You could repair it," said the harbour master, who had come to bring the keys. "The lens is whole. The clockwork \
is whole. What is missing is the electricity, since they took the cable away, and somebody who goes up there every \
day." He put the keys on the table next to the notebooks: a large one for the door, a small one for the lamp room, \
and a third one that nobody knew a lock for.

So she began to count. The old lamp had used a thousand watts; a modern one needed sixty. A panel on the south \
side, two batteries, a controller: 1,840 euros, if she did the work herself. A rope, paint, glass for three panes, \
260 euros. The clockwork had to be taken apart, cleaned and oiled; that cost nothing but patience. She wrote the \
list into a new notebook, with the date on the first page, and because it seemed right she drew an empty table on \
the last.

In the first week she carried everything up the hundred and forty-two steps. In the second it rained, and she sat \
in the lamp room with the wheels of the clockwork spread out on a sheet, each in its place, as on a map. Some of \
them had teeth so worn that they turned without taking hold. The smith in the village made new ones after her \
drawings; they were a little too exact, he said, one would have to run them in. In the third week she set the lens \
turning by hand, and it went round without a sound, as if it had only been waiting, throwing small rainbows on the \
walls.
"""

TEXTS: dict[str, str] = {
    "english": "The capital of France is Paris, and the capital of Italy is",
    "code": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return fibonacci(n - 1) +",
    "chinese": "从前有一座山，山里有一座庙，庙里有一个老和尚，他对小和尚说：",
    "emoji": "I ❤️ pizza 🍕🍕 and 👩‍👩‍👧‍👦 🏳️‍🌈 make me smile 😀, but rain 🌧️ makes me",
    "chat": "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n",
    "numbers": "1, 2, 4, 8, 16, 32,\t64,   128,\r\n3.14159 + 2.71828 = 5.85987; 1000000 / 7 =",
    "languages": "Zürich liegt in der Schweiz. Où est la gare? ¿Dónde está? Где находится? こんにちは。 مرحبا بالعالم",
    "letter": "A",
    "long": _LONG,
}
# Longer than the sliding windows of 512 of the models that have them, and than a chunk.
WINDOW_TEXTS = {"window": 2 * _LONG + TEXTS["code"]}
