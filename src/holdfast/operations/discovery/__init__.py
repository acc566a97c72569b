"""Operations on finds and discoveries."""
