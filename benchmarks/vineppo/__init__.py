"""VinePPO against GRPO on a model that learns in minutes: right answers over steps and over tokens that workers sample."""
