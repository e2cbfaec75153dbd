"""python -m bench [name ...]: run the named benchmarks, or all."""

import sys

from bench import creates, operator, redirect

BENCHES = {"redirect": redirect.main, "creates": creates.main, "operator": operator.main}


def main(names: list[str]) -> int:
    unknown = set(names) - set(BENCHES)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(BENCHES)}")
        return 2
    return max(BENCHES[name]() for name in names or BENCHES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
