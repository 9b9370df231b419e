"""How sound each rule is: ratings of changed rules and changed responses beside unchanged ones."""
