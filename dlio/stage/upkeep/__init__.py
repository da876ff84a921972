"""What happens to copies at rest: they are verified, repaired and removed."""
