"""The batch in the clothes of other libraries."""
