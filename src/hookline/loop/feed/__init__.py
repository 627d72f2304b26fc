"""The data of training: from any batch of any epoch on, in an order that is a function of the seed and the epoch."""

from hookline.loop.feed.feed import Feed, feed_of

__all__ = ["Feed", "feed_of"]
