"""Compares the measured values of cards with their siblings and with their own nights.

Pure: the caller passes the values of some nights and a budget of false alarms, and gets findings.
docs/explanation/yardstick.md has the calculation.
"""
