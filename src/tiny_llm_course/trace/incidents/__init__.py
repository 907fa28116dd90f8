"""The starvation corpus: public incidents of serving engines as small traces, each with a bound that must hold."""
