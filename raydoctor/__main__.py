"""`python -m raydoctor`."""

from raydoctor.cli import main

if __name__ == "__main__":
    main()
