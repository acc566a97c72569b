"""Operations on endpoints."""
