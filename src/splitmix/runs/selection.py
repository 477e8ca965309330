"""What a round is worth: accuracy on validation images, and where the objective asks for it, accuracy under attack."""

from dataclasses import replace

from splitmix.core.method import Engine
from splitmix.core.objective import Trial
from splitmix.core.score import WidthScore, score
from splitmix.core.types import Question, Weights
from splitmix.runs.records import StoredTrial
from splitmix.runs.setup import Setup

TRIED = 512  # images, over all clients, that are attacked: an attack takes its time


def judge(
    setup: Setup, engine: Engine, weights: Weights, clean: WidthScore, question: Question
) -> tuple[float, list[StoredTrial]]:
    """The sum of all trials by their shares, and each as it is stored; `clean` is the score of the judged width."""
    if setup.trials == (Trial(),):
        return clean.accuracy, []
    found = [(trial, _accuracy(trial, setup, engine, weights, clean, question)) for trial in setup.trials]
    rows: list[StoredTrial] = [
        {"robust": trial.robust, "attack": trial.attack.name if trial.attack else None, "accuracy": accuracy}
        for trial, accuracy in found
    ]
    return sum(trial.share * accuracy for trial, accuracy in found), rows


def _accuracy(
    trial: Trial, setup: Setup, engine: Engine, weights: Weights, clean: WidthScore, question: Question
) -> float:
    if trial == Trial(trial.share):
        return clean.accuracy
    asked = replace(question, robust=trial.robust, attack=trial.attack)
    if trial.attack is not None:
        norm = "client" if setup.config.norm in ("batch", "post") else "stored"  # fixed while images are attacked
        asked = replace(asked, images=max(1, TRIED // len(setup.domains)), norm=norm, seed=setup.config.seed)
    mix = {clean.width: setup.method.compose(clean.width)}
    return score(engine, weights, mix, setup.domains, asked)[0].accuracy
