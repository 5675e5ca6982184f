"""Recovery of a secret that a dealer split among holders, some of whom may have a wrong share."""

from collections import Counter
from collections.abc import Callable

from secagg.crypto.keys import SECRET_BYTES
from secagg.crypto.reed_solomon import wrong_shares
from secagg.crypto.shamir import recover
from secagg.sum_errors import Cause, RemoteProtocolError, ThresholdNotMet


class ShareRecovery:
    """Recovers secrets from exactly `threshold` shares each, and remembers who misled it.

    A secret counts only if it fits its commitment. If the first t shares give no such secret, those that are
    not what the dealer committed to are left out, and the m others decoded as a Reed-Solomon code: up to
    floor((m - t) / 2) of them may be wrong, and each is named.

    Args:
        threshold: t.
        blamed: gathers whose fault wrong shares are: the holder's if a share does not fit the dealer's
            commitment to it, else the dealer's.
    """

    def __init__(self, threshold: int, blamed: set[int]) -> None:
        self._threshold = threshold
        self._suspicion: Counter[int] = Counter()
        self.bad_shares: list[tuple[int, int]] = []
        """(dealer, holder) of shares found wrong."""
        self._blamed = blamed

    def secret(
        self,
        dealer: int,
        shares: dict[int, bytes],
        numbers: dict[int, int],
        fits: Callable[[bytes], bool],
        is_committed: Callable[[int, bytes], bool],
    ) -> bytes:
        """The secret of `dealer`, 32 bytes.

        Args:
            dealer: whose secret it is.
            shares: holder -> share.
            numbers: holder -> its Shamir number (from 1) with this dealer.
            fits: whether a candidate matches what the dealer committed to.
            is_committed: whether a holder's share is the one that the dealer committed to.

        Raises:
            ThresholdNotMet: fewer shares than the threshold, wrong ones of holders not counted.
            RemoteProtocolError: the shares that the dealer committed to do not recover its secret.
        """
        self._require(len(shares))
        trusted_first = sorted(shares, key=lambda holder: (self._suspicion[holder], holder))
        by_number = {numbers[holder]: shares[holder] for holder in trusted_first}
        secret = self._recovered(by_number, fits)
        if secret is not None:
            return secret
        lying = {holder for holder in shares if not is_committed(holder, shares[holder])}
        self._note(dealer, lying)
        self._blamed |= lying
        self._require(len(shares) - len(lying))
        by_number = {numbers[holder]: shares[holder] for holder in trusted_first if holder not in lying}
        wrong = wrong_shares(by_number, self._threshold, SECRET_BYTES)
        if wrong is not None:
            right = {number: share for number, share in by_number.items() if number not in wrong}
            secret = self._recovered(right, fits)
        if wrong or secret is None:
            self._blamed.add(dealer)
        if wrong is None or secret is None:
            reason = (
                f"{self._threshold} of the {len(by_number)} shares that it dealt do not recover its secret"
            )
            raise RemoteProtocolError("unmask", dealer, reason, Cause.SHARES)
        self._note(dealer, {holder for holder, number in numbers.items() if number in wrong})
        return secret

    def _require(self, num_shares: int) -> None:
        if num_shares < self._threshold:
            raise ThresholdNotMet("unmask", num_shares, self._threshold)

    def _recovered(self, by_number: dict[int, bytes], fits: Callable[[bytes], bool]) -> bytes | None:
        """What the first t shares recover, if it fits."""
        secret = recover(dict(list(by_number.items())[: self._threshold]), SECRET_BYTES)
        return secret if secret is not None and fits(secret) else None

    def _note(self, dealer: int, holders: set[int]) -> None:
        self._suspicion.update(holders)
        self.bad_shares += [(dealer, holder) for holder in sorted(holders)]
