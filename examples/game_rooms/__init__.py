"""The code of docs/tutorial.md: a test runs it as the page has it."""
