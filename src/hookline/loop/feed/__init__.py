"""The data of training: from any batch of any epoch on, in an order that is a function of the seed and the epoch."""

from hookline.loop.feed.dealt import SharedFeed
from hookline.loop.feed.facts import Facts
from hookline.loop.feed.feed import Feed, feed_of
from hookline.loop.feed.shared import shared_feed_of

__all__ = ["Facts", "Feed", "SharedFeed", "feed_of", "shared_feed_of"]
