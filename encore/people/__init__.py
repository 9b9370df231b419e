"""What people say of responses and rules, and how far they agree with judges."""
