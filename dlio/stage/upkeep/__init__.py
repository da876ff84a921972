"""What happens to copies at rest (at_rest.py): they are verified, repaired and removed."""
