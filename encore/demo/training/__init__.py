"""How the demonstration judge was made: tokenizer, word vectors, network, training examples.

Nothing here is needed to use the judge. Needs torch, transformers and tokenizers.
"""
