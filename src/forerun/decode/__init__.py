"""From a restored cache to an answer: prefill of the suffix, then rounds of draft and verify until a stop condition."""
