"""Programs and outcomes as documents (`contracts.programs`), for whoever judges them in another process: a runner pod, or a sandbox's parent."""

import json

from shoal.contracts.programs import ProgramCall, ProgramLimits, ProgramOutcome, ProgramRequest
from shoal.rewards.sandbox.program import Call, Limits, Outcome, Program, SandboxFailed

STDERR_CHARACTERS = 1 << 16


def request_of(program: Program) -> bytes:
    """The document that asks for one program. SandboxFailed for a program that nobody may take."""
    limits, call = program.limits, None
    try:
        if program.call is not None:
            call = ProgramCall(function=program.call.function, arguments_json=json.dumps(program.call.arguments))
        return ProgramRequest(
            source=program.source.encode(errors="surrogatepass"),
            stdin=program.stdin,
            call=call,
            limits=ProgramLimits(
                cpu_seconds=limits.cpu_seconds,
                wall_seconds=limits.wall_seconds,
                memory_bytes=limits.memory_bytes,
                output_bytes=limits.output_bytes,
                threads=limits.threads,
                open_files=limits.open_files,
            ),
        ).to_json()
    except (ValueError, TypeError, RecursionError) as error:
        raise SandboxFailed(f"cannot send the program to a runner: {' '.join(str(error).split())[:300]}") from error


def program_of(body: bytes) -> Program:
    """The program that a document asks for. ValueError (also pydantic's ValidationError) or RecursionError for what asks for none."""
    asked = ProgramRequest.from_json(body)
    call = None
    if asked.call is not None:
        arguments = json.loads(asked.call.arguments_json)
        if not isinstance(arguments, list):
            raise ValueError(f"call.arguments_json holds a {type(arguments).__name__}; allowed: a list")
        call = Call(asked.call.function, arguments)
    source = asked.source.decode(errors="surrogatepass")
    return Program(source, asked.stdin, call, Limits(**asked.limits.model_dump()))


def document_of(outcome: Outcome) -> bytes:
    """The document of an outcome."""
    return ProgramOutcome(
        ended=outcome.ended,
        exit_code=outcome.exit_code,
        stdout=outcome.stdout,
        stderr=outcome.stderr[-STDERR_CHARACTERS:],
        cpu_seconds=outcome.cpu_seconds,
        wall_seconds=outcome.wall_seconds,
    ).to_json()


def outcome_of(document: bytes) -> Outcome:
    """The outcome of a document. ValidationError for another one."""
    read = ProgramOutcome.from_json(document)
    return Outcome(read.ended, read.exit_code, read.stdout, read.stderr, read.cpu_seconds, read.wall_seconds)
