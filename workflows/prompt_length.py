"""How long a prompt is for the verifier."""

from actors.engine import Message
from actors.verifier import Verifier
from workflows.conversation import first_turn


class PromptLength:
    """Tokens of a conversation's first turn in the verifier's chat template."""

    def __init__(self, verifier: Verifier, trust_remote_code: bool) -> None:
        from transformers import AutoTokenizer  # takes seconds

        self.tokenizer = AutoTokenizer.from_pretrained(verifier.path, trust_remote_code=trust_remote_code)
        if not self.tokenizer.chat_template:
            raise ValueError(f"verifier.source: {verifier.path} has no chat template; use an instruction-tuned model")

    def __call__(self, messages: list[Message]) -> int:
        ids = self.tokenizer.apply_chat_template(
            first_turn(messages), tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return len(ids)
