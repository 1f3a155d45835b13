"""Keeps evaluation prompts out of the training prompts (pure)."""

from collections.abc import Iterable, Iterator

from workflows.conversation import Conversation, words


class Decontaminator:
    """Knows the word n-grams of every evaluation turn, also of turns that the benchmark does not play.

    A training conversation is contaminated when one of its user turns shares `ngram` consecutive words with an
    evaluation turn, or says the same words as a whole (what catches turns shorter than `ngram`). `ngram=0` is off.
    """

    def __init__(self, evals: Iterable[Conversation], ngram: int) -> None:
        self.ngram = ngram
        self.whole: set[tuple[str, ...]] = set()
        self.grams: set[tuple[str, ...]] = set()
        for turn in (t for e in evals for t in _user_words(e)):
            self.whole.add(turn)
            self.grams.update(self._grams(turn))

    def contaminated(self, conversation: Conversation) -> bool:
        if self.ngram == 0:
            return False
        return any(
            turn in self.whole or any(gram in self.grams for gram in self._grams(turn))
            for turn in _user_words(conversation)
        )

    def _grams(self, turn: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        return (turn[i : i + self.ngram] for i in range(len(turn) - self.ngram + 1)) if self.ngram else iter(())


def _user_words(conversation: Conversation) -> Iterator[tuple[str, ...]]:
    """Words of each user turn; a turn without any (punctuation only) matches nothing."""
    return (w for m in conversation.messages if m["role"] == "user" and (w := words(m["content"])))
