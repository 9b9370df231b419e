"""The reward server: rewards over HTTP, and the contribution of each rule to them."""
