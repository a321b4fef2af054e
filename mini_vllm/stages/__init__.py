"""The scheduler as the reader grows it, one small file a chapter. Imported by notebooks, exercises and tests only."""
