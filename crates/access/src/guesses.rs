//! Rate limit of wrong keys for each client address. After too many, the address may try no more for a while.
//! Generated keys cannot be guessed and are accepted even then, so clients behind one address do not shut each
//! other out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::rate::{Bucket, locked};

/// Wrong keys that one address may send in a minute.
const GUESSES_PER_MINUTE: u32 = 20;
/// Maximum number of remembered addresses.
const ADDRESSES_MAX: usize = 4096;

/// Recent wrong keys by address.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<HashMap<IpAddr, Bucket>>);

impl Guesses {
    /// Time for which `from` may send no guessable key, if it is blocked.
    pub(crate) fn blocked(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        locked(&self.0).get_mut(&client_of(from))?.wait(1, GUESSES_PER_MINUTE, now).err()
    }

    /// Counts a wrong key from `from`.
    pub(crate) fn wrong(&self, from: IpAddr, now: Instant) {
        let mut seen = locked(&self.0);
        let from = client_of(from);
        if seen.len() >= ADDRESSES_MAX && !seen.contains_key(&from) {
            seen.retain(|_, bucket| bucket.level(GUESSES_PER_MINUTE, now).remaining < GUESSES_PER_MINUTE);
            // If none can be forgotten, the address with the most guesses left is: it loses least.
            if seen.len() >= ADDRESSES_MAX {
                let level = |bucket: &mut Bucket| bucket.level(GUESSES_PER_MINUTE, now).remaining;
                let most = seen.iter_mut().map(|(address, bucket)| (level(bucket), *address)).max();
                if let Some((_, address)) = most {
                    seen.remove(&address);
                }
            }
        }
        seen.entry(from).or_insert(Bucket::FULL).spend(1, GUESSES_PER_MINUTE, now);
    }
}

/// Address that identifies a client: an IPv4 address, or the /64 network of an IPv6 address, because one client
/// owns all of it.
pub fn client_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr},
        time::{Duration, Instant},
    };

    use super::{ADDRESSES_MAX, GUESSES_PER_MINUTE, Guesses};

    #[test]
    fn an_address_has_so_many_guesses() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let from: IpAddr = "2001:db8::1".parse().unwrap();
        for _ in 0..GUESSES_PER_MINUTE {
            assert_eq!(guesses.blocked(from, now), None);
            guesses.wrong(from, now);
        }
        // Another address of the same network counts as the same client.
        let beside: IpAddr = "2001:db8::ffff:1".parse().unwrap();
        assert_eq!(guesses.blocked(beside, now), Some(Duration::from_secs(3)));
        assert_eq!(guesses.blocked("2001:db9::1".parse().unwrap(), now), None);
        assert_eq!(guesses.blocked(beside, now + Duration::from_secs(4)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_worst_stay() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let worst = IpAddr::from(Ipv4Addr::LOCALHOST);
        for _ in 0..GUESSES_PER_MINUTE {
            guesses.wrong(worst, now);
        }
        for i in 0..2 * ADDRESSES_MAX as u32 {
            guesses.wrong(IpAddr::from(Ipv4Addr::from(0x0a00_0000 + i)), now);
        }
        assert_eq!(guesses.0.lock().unwrap().len(), ADDRESSES_MAX);
        assert!(guesses.blocked(worst, now).is_some());
    }
}
