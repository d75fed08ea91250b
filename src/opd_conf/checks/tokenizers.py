"""What tokenizers and vocabularies say: student and teachers must mean the same by the same ids."""

from collections.abc import Iterator, Mapping

from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.checks.models import STUDENT, Part, parts
from opd_conf.view import ROLLOUT, View


def chat_template_there(run: View) -> Iterator[Finding]:
    """The student's tokenizer has a chat template: without one verl's length filter drops every sample.

    A template of the configuration, model.custom_chat_template, is given to the processor where there is one, else to
    the tokenizer: to the same of the two that the filter asks.

    verl: utils/dataset/rl_dataset.py:maybe_filter_out_long_prompts, which swallows the error, and
    workers/config/model.py:HFModelConfig.__post_init__.
    """
    given = (run.setting("data.apply_chat_template_kwargs") or {}).get("chat_template")
    if given or run.setting(f"{STUDENT}.custom_chat_template") or run.setting("data.custom_cls.path"):
        return
    for part in parts(run)[:1]:
        model = part.tokenizer
        if part.server.at != ROLLOUT or model is None or model.tokenizer_config is None or model.chat_template:
            continue
        filtered = run.setting("data.filter_overlong_prompts")
        # In the cache a file that is missing may only not have been fetched.
        say = warning if model.cached else error
        yield say(
            part.key,
            "data.filter_overlong_prompts",
            message=f"The student's tokenizer has no chat template ({model.folder}): "
            + ("verl would drop every sample as too long." if filtered else "every sample would fail."),
            fix=f"cp TEMPLATE.jinja {model.folder}/chat_template.jinja   # the teacher's, for instance",
        )


def teachers_share_tokens(run: View) -> Iterator[Finding]:
    """Student and teachers give the same ids to the same tokens; verl passes ids between them and never compares.

    Tokens that only one of them has, above the others, are a note (the teacher's) or a warning (the student's).

    verl: experimental/teacher_loop/teacher_manager.py:compute_teacher_logprobs_single.
    """
    for student, teacher in _pairs(run):
        one, other = student.tokenizer, teacher.tokenizer
        if one is None or other is None or one.same_tokenizer_file(other):
            continue
        mine, theirs = one.tokens, other.tokens
        if mine is not None and theirs is not None and mine != theirs:
            yield _difference(student, teacher, mine, theirs)


def _pairs(run: View) -> list[tuple[Part, Part]]:
    """The student with each teacher."""
    student = [part for part in parts(run) if part.server.at == ROLLOUT]
    return [(student[0], part) for part in parts(run) if student and part.server.at != ROLLOUT]


def _difference(student: Part, teacher: Part, mine: Mapping[str, int], theirs: Mapping[str, int]) -> Finding:
    """How two vocabularies differ: ids that mean different tokens, else tokens that only one of them has."""
    keys = (teacher.key, student.key)
    fix = f"{teacher.key}=MODEL   # one with the student's tokenizer"
    names = {number: token for token, number in theirs.items()}
    only_mine = sorted((number, token) for token, number in mine.items() if theirs.get(token) != number)
    clashes = [(number, token) for number, token in only_mine if token in theirs or number in names]
    if clashes:
        number, token = clashes[0]
        where = f"has it as {theirs[token]}" if token in theirs else f"has {names[number]!r} there"
        count = f"{len(clashes)} tokens" if len(clashes) > 1 else "1 token"
        return error(
            *keys,
            message=f"The tokenizers differ in {count}: {token!r} is {number} for the student, and {teacher.role} "
            f"({teacher.path}) {where}. What the teacher says would be about other words.",
            fix=fix,
        )
    if only_mine:
        number, token = only_mine[0]
        return warning(
            *keys,
            message=f"The student has {len(only_mine)} tokens that {teacher.role} ({teacher.path}) lacks, first "
            f"{token!r}, {number}: it knows nothing about them.",
            fix=fix,
        )
    number, token = min((number, token) for token, number in theirs.items() if token not in mine)
    return note(
        *keys,
        message=f"{teacher.role.capitalize()} has {len(theirs) - len(mine)} tokens that the student lacks, first "
        f"{token!r}, {number}; the others are the same.",
        fix="nothing to do where the student never needs them",
    )


def start_token_alike(run: View) -> Iterator[Finding]:
    """Student and teachers begin a text alike: teachers are asked about the student's ids as they are.

    verl: experimental/teacher_loop/teacher_manager.py:compute_teacher_logprobs_single.
    """
    for student, teacher in _pairs(run):
        one, other = (part.tokenizer.tokenizer_config if part.tokenizer else None for part in (student, teacher))
        if one is None or other is None or bool(one.get("add_bos_token")) == bool(other.get("add_bos_token")):
            continue
        adds, lacks = (teacher, student) if other.get("add_bos_token") else (student, teacher)
        yield note(
            teacher.key,
            student.key,
            message=f"The tokenizer of {adds.role} begins a text with a start token, that of {lacks.role} does not "
            "(add_bos_token); the teacher reads what the student's chat template makes.",
            fix="nothing to do where the chat template writes its own start",
        )


def vocabulary_rows(run: View) -> Iterator[Finding]:
    """Each model has a row for every token of the other: verl and vLLM look tokens up by id.

    vLLM refuses a token beyond the end (v1/engine/input_processor.py), a lookup in verl's loss stops the device.

    verl: trainer/distillation/fsdp/losses.py.
    """
    for student, teacher in _pairs(run):
        mine, theirs = (part.model.number("vocab_size") if part.model else None for part in (student, teacher))
        if mine is None or theirs is None:
            continue
        needs, gets = (_last_token(part) for part in (student, teacher))
        keys, rows = (student.key, teacher.key), f"The student has {mine} vocabulary rows, {teacher.role} {theirs}"
        fix = f"{teacher.key}=MODEL   # one with the student's vocabulary"
        if needs is not None and needs >= theirs:
            message = f"{rows}: samples with the student's token {needs} would fail one by one."
            yield error(*keys, message=message, fix=fix)
        elif run.uses_top_k and gets is not None and gets >= mine:
            message = f"{rows}: the teacher's token {gets} among its top {run.topk} stops the update."
            yield error(*keys, message=message, fix=fix)
        elif mine != theirs and (needs is None or gets is None) and abs(mine - theirs) > PADDING:
            message = f"{rows}: hardly the same tokenizer."
            yield warning(*keys, message=message, fix=fix)


PADDING = 1024
"""Rows by which models of one tokenizer may differ: Qwen2.5 has 151,936 and, from 7B up, 152,064."""


def _last_token(part: Part) -> int | None:
    tokens = part.tokenizer.tokens if part.tokenizer else None
    return max(tokens.values()) if tokens else None
