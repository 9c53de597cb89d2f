"""The page: its model (pure), the readers of each stage, its charts as SVG, and the template."""
