"""Cards as JSON objects: several scores of one reward, by name, and none for what is no JSON."""

import json
from collections.abc import Iterator

import verifiers.v1 as vf
from pydantic import BaseModel, ValidationError


class Card(BaseModel):
    name: str
    age: int


class CardData(vf.TaskData):
    card: Card


class CardTask(vf.Task[CardData]):
    @vf.reward(weight=0.5)
    async def fields(self, trace: vf.Trace) -> dict[str, float]:
        try:
            card = Card.model_validate(json.loads(trace.last_reply))
        except (ValueError, ValidationError):
            return {"name": 0.0, "age": 0.0}
        return {"name": float(card.name == self.data.card.name), "age": float(card.age == self.data.card.age)}


class CardTaskset(vf.Taskset[CardTask]):
    def load(self) -> Iterator[CardTask]:
        for number, name in enumerate(("Ada", "Bo", "Cleo", "Dan")):
            card = Card(name=name, age=20 + number)
            prompt = f"Write a JSON object with name and age: {card.name} is {card.age}."
            yield CardTask(CardData(prompt=prompt, card=card), self.config.task)


__all__ = ["CardTaskset"]
