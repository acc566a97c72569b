"""What people ask about certificates: to list, change, export, import, explain and forecast them."""
