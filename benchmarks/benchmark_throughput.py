"""`pdm run bench-throughput` under the name that serving people type."""

from tiny_llm_kit.commands.bench_throughput import main

if __name__ == "__main__":
    main()
