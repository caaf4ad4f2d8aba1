"""`PionPromptCache` and the store client."""
