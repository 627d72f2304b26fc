"""Training data, which can be read from any batch of any epoch on.

The order of an epoch is a function of the seed and the epoch.
"""

from hookline.loop.data.dealt import SharedFeed
from hookline.loop.data.facts import Facts
from hookline.loop.data.feed import Feed, feed_of
from hookline.loop.data.shared import shared_feed_of

__all__ = ["Facts", "Feed", "SharedFeed", "feed_of", "shared_feed_of"]
