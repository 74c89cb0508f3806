"""Jobs for --job: submission, records, and how they are."""
