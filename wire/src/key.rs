//! Salt's RSA keys: read from PEM, told apart by DER, used to sign and to verify.
//!
//! Salt writes a minion's private key as PKCS#1 and public keys as SPKI (`salt/crypt.py`, 3006.27).
//! `crypt.clean_key` drops the last newline from the master's copy, so two PEM files of one key need not
//! be equal byte by byte: keys are compared by their DER.

use ring::rand::SystemRandom;
use ring::rsa::KeyPair;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey};
use spki::der::asn1::UintRef;
use spki::der::{Decode, Reader, SliceReader};
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

use crate::id::Sha256Hex;

/// The largest PEM file that is read as a key, in bytes. An RSA 8192 private key takes under 7000.
pub const MAX_PEM_BYTES: usize = 16 * 1024;
/// The shortest modulus, in bits. Salt's default `keysize` is 2048.
pub const MIN_KEY_BITS: usize = 2048;

/// RFC 8017, appendix A.1.
const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// Why a file is no usable key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Over [`MAX_PEM_BYTES`].
    #[error("key file is {0} bytes, over the limit of {MAX_PEM_BYTES}")]
    TooLong(usize),
    /// Not one PEM block.
    #[error("key file is not PEM")]
    NotPem,
    /// Protected by a passphrase.
    #[error("private key is encrypted, and gw has no passphrase to open it")]
    Encrypted,
    /// PEM of something else.
    #[error("key file holds {0:?}, not an RSA key")]
    WrongKind(String),
    /// Not an RSA key, or broken DER.
    #[error("key is not a valid RSA key")]
    NotRsa,
    /// Under [`MIN_KEY_BITS`].
    #[error("RSA key has {0} bits, under the limit of {MIN_KEY_BITS}")]
    TooShort(usize),
}

/// A signature that does not belong to the bytes and the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("signature does not verify under the accepted key")]
pub struct BadSignature;

/// An RSA public key of at least [`MIN_KEY_BITS`] bits. Equal if the DER is equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    spki: Vec<u8>,
    pkcs1: Vec<u8>,
}

impl PublicKey {
    /// Reads a `PUBLIC KEY` (SPKI) PEM file.
    pub fn from_pem(text: &[u8]) -> Result<Self, KeyError> {
        let block = one_block(text)?;
        if block.tag() != "PUBLIC KEY" {
            return Err(KeyError::WrongKind(block.tag().chars().take(40).collect()));
        }
        let spki = block.into_contents();
        let parsed = SubjectPublicKeyInfoRef::from_der(&spki).map_err(|_| KeyError::NotRsa)?;
        if parsed.algorithm.oid != RSA_ENCRYPTION {
            return Err(KeyError::NotRsa);
        }
        let pkcs1 = parsed
            .subject_public_key
            .as_bytes()
            .ok_or(KeyError::NotRsa)?
            .to_vec();
        let bits = modulus_bits(&pkcs1).ok_or(KeyError::NotRsa)?;
        if bits < MIN_KEY_BITS {
            return Err(KeyError::TooShort(bits));
        }
        Ok(PublicKey { spki, pkcs1 })
    }

    /// SHA-256 of the SPKI DER.
    pub fn fingerprint(&self) -> Sha256Hex {
        Sha256Hex::of(&self.spki)
    }

    /// Verifies an RSA PKCS#1 v1.5 SHA-256 signature over the exact bytes.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.pkcs1)
            .verify(message, signature)
            .map_err(|_| BadSignature)
    }
}

/// An RSA private key of 2048 to 4096 bits (`ring` signs with no other).
pub struct PrivateKey {
    pair: KeyPair,
}

impl PrivateKey {
    /// Reads a PKCS#1 (`RSA PRIVATE KEY`) or unencrypted PKCS#8 (`PRIVATE KEY`) PEM file.
    pub fn from_pem(text: &[u8]) -> Result<Self, KeyError> {
        let block = one_block(text)?;
        // The old way to encrypt a PKCS#1 file: RFC 1421's headers before the body.
        if block.headers().get("Proc-Type").is_some() {
            return Err(KeyError::Encrypted);
        }
        let pair = match block.tag() {
            "RSA PRIVATE KEY" => KeyPair::from_der(block.contents()),
            "PRIVATE KEY" => KeyPair::from_pkcs8(block.contents()),
            "ENCRYPTED PRIVATE KEY" => return Err(KeyError::Encrypted),
            other => return Err(KeyError::WrongKind(other.chars().take(40).collect())),
        };
        let pair = pair.map_err(|rejected| match private_modulus_bits(block.contents()) {
            Some(bits) if bits < MIN_KEY_BITS => KeyError::TooShort(bits),
            // ring's word (such as "InvalidEncoding") would not help an operator more than this.
            _ => {
                let _: ring::error::KeyRejected = rejected;
                KeyError::NotRsa
            }
        })?;
        Ok(PrivateKey { pair })
    }

    /// Signs the exact bytes with RSA PKCS#1 v1.5 SHA-256.
    ///
    /// # Panics
    /// If the system has no random source, which blinding needs.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.pair.public().modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                message,
                &mut signature,
            )
            .expect("signing needs only a random source and a buffer of the modulus's length");
        signature
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

fn one_block(text: &[u8]) -> Result<pem::Pem, KeyError> {
    if text.len() > MAX_PEM_BYTES {
        return Err(KeyError::TooLong(text.len()));
    }
    let mut blocks = pem::parse_many(text).map_err(|_| KeyError::NotPem)?;
    match (blocks.pop(), blocks.is_empty()) {
        (Some(block), true) => Ok(block),
        _ => Err(KeyError::NotPem),
    }
}

/// Bits of the modulus of a DER `RSAPublicKey` (RFC 8017, A.1.1) with nothing behind it.
fn modulus_bits(pkcs1: &[u8]) -> Option<usize> {
    let mut reader = SliceReader::new(pkcs1).ok()?;
    let bits = reader
        .sequence(|fields| {
            let modulus = UintRef::decode(fields)?;
            UintRef::decode(fields)?;
            Ok::<_, spki::der::Error>(bits_of(modulus.as_bytes()))
        })
        .ok()?;
    reader.is_finished().then_some(bits)
}

/// Bits of the modulus of a DER `RSAPrivateKey` (RFC 8017, A.1.2), to explain a refusal; PKCS#8 wraps it
/// in an octet string, which is found by position.
fn private_modulus_bits(der: &[u8]) -> Option<usize> {
    fn pkcs1(der: &[u8]) -> spki::der::Result<usize> {
        let mut reader = SliceReader::new(der)?;
        reader.sequence(|fields| {
            UintRef::decode(fields)?;
            let bits = bits_of(UintRef::decode(fields)?.as_bytes());
            while !fields.is_finished() {
                spki::der::AnyRef::decode(fields)?;
            }
            Ok(bits)
        })
    }
    fn pkcs8(der: &[u8]) -> spki::der::Result<usize> {
        let mut reader = SliceReader::new(der)?;
        reader.sequence(|fields| {
            UintRef::decode(fields)?;
            spki::AlgorithmIdentifierRef::decode(fields)?;
            let bits = pkcs1(<&spki::der::asn1::OctetStringRef>::decode(fields)?.as_bytes())?;
            while !fields.is_finished() {
                spki::der::AnyRef::decode(fields)?;
            }
            Ok(bits)
        })
    }
    pkcs1(der).or_else(|_| pkcs8(der)).ok()
}

fn bits_of(big_endian: &[u8]) -> usize {
    match big_endian.first() {
        Some(first) => big_endian.len() * 8 - first.leading_zeros() as usize,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys made for these tests alone with `openssl genrsa`, `openssl pkcs8` and `openssl ecparam`.
    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../fixtures/keys/", $name)).as_slice()
        };
    }

    #[test]
    fn pkcs1_and_pkcs8_files_of_one_key_sign_alike_and_verify_under_its_public_file() {
        let public = PublicKey::from_pem(fixture!("rsa2048.pub")).expect("a public key");
        let first = PrivateKey::from_pem(fixture!("rsa2048.pkcs1.pem"))
            .expect("pkcs1")
            .sign(b"x");
        let second = PrivateKey::from_pem(fixture!("rsa2048.pkcs8.pem"))
            .expect("pkcs8")
            .sign(b"x");
        assert_eq!(first, second);
        assert_eq!(public.verify(b"x", &first), Ok(()));
        assert_eq!(public.verify(b"y", &first), Err(BadSignature));
        assert_eq!(public.verify(b"x", &first[1..]), Err(BadSignature));
        assert_eq!(public.verify(b"x", b""), Err(BadSignature));
    }

    #[test]
    fn keys_are_compared_by_der_not_by_the_files_bytes() {
        let file = fixture!("rsa2048.pub");
        let cleaned = file.strip_suffix(b"\n").expect("a trailing newline");
        assert_eq!(PublicKey::from_pem(file), PublicKey::from_pem(cleaned));
    }

    #[test]
    fn unusable_keys_get_one_clear_error() {
        let private = |pem| PrivateKey::from_pem(pem).expect_err("refused");
        assert_eq!(
            private(fixture!("rsa2048.encrypted-pkcs1.pem")),
            KeyError::Encrypted
        );
        assert_eq!(
            private(fixture!("rsa2048.encrypted-pkcs8.pem")),
            KeyError::Encrypted
        );
        assert_eq!(
            private(fixture!("rsa1024.pkcs1.pem")),
            KeyError::TooShort(1024)
        );
        assert_eq!(
            private(fixture!("rsa1024.pkcs8.pem")),
            KeyError::TooShort(1024)
        );
        assert_eq!(private(fixture!("ec.pkcs8.pem")), KeyError::NotRsa);
        assert_eq!(private(b"garbage"), KeyError::NotPem);
        assert_eq!(
            private(&vec![b'x'; MAX_PEM_BYTES + 1]),
            KeyError::TooLong(MAX_PEM_BYTES + 1)
        );
        let public = |pem| PublicKey::from_pem(pem).expect_err("refused");
        assert_eq!(public(fixture!("rsa1024.pub")), KeyError::TooShort(1024));
        assert_eq!(public(fixture!("ec.pub")), KeyError::NotRsa);
        assert!(matches!(
            public(fixture!("rsa2048.pkcs1.pem")),
            KeyError::WrongKind(_)
        ));
        assert_eq!(
            public(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
            KeyError::NotRsa
        );
    }
}
