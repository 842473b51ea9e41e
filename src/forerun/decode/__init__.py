"""From a restored cache to an answer: prefill the suffix, then rounds of draft and verify until something ends them."""
