"""An index behind HTTP: `app.py` has the application, `service.py` what it does."""
