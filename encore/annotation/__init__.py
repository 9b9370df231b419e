"""What people say: samples for annotators, their answers, and how far they agree with judges."""
