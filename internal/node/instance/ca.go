package instance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Each node has a certificate authority of its own, for one purpose: its
// Postgres admits for replication whoever holds a client certificate of it. So a
// certificate admits to one node, and what a node hands out another cannot use.

// peerPrefix begins the name in a peer's certificate.
const peerPrefix = "holdfast-peer-"

const certYears = 20

// authority is the node's own CA.
type authority struct {
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	certPEM []byte
}

// loadAuthority reads the CA from dir, or makes one. It is not lost with the
// data directory, nor copied with it. Its name must be no other certificate's:
// OpenSSL takes what is issued by its own name for self-signed.
func loadAuthority(dir string, cn string, now time.Time) (*authority, error) {
	certPath, keyPath := filepath.Join(dir, "replication-ca.crt"), filepath.Join(dir, "replication-ca.key")
	certPEM, err1 := os.ReadFile(certPath)
	keyPEM, err2 := os.ReadFile(keyPath)
	if err1 == nil && err2 == nil {
		return parseAuthority(certPEM, keyPEM)
	}
	for _, err := range []error{err1, err2} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the replication authority: %w", err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t, err := template(cn, now)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, err
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	// The certificate comes last: with it there, the pair is whole.
	if err := errors.Join(writePrivate(keyPath, keyPEM), writePrivate(certPath, certPEM), syncDir(dir)); err != nil {
		return nil, fmt.Errorf("keep the replication authority: %w", err)
	}
	return parseAuthority(certPEM, keyPEM)
}

func parseAuthority(certPEM, keyPEM []byte) (*authority, error) {
	c, k := decodePEM(certPEM), decodePEM(keyPEM)
	if c == nil || k == nil {
		return nil, errors.New("the replication authority is damaged: remove replication-ca.* from the state directory, a new one is made")
	}
	cert, err := x509.ParseCertificate(c)
	if err != nil {
		return nil, fmt.Errorf("read the replication authority: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("read the replication authority: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || !ec.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the replication authority's key does not fit its certificate: remove replication-ca.* from the state directory, a new one is made")
	}
	return &authority{cert: cert, key: ec, certPEM: certPEM}, nil
}

// issue signs a new key for cn: a client's, or this server's with its address.
func (a *authority) issue(cn, address string, server bool, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t, err := template(cn, now)
	if err != nil {
		return nil, nil, err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if server {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(address); ip != nil {
			t.IPAddresses = []net.IP{ip}
		} else if address != "" {
			t.DNSNames = []string{address}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, err
}

// template begins a day early: clocks of hosts differ.
func template(cn string, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: cn},
		NotBefore: now.AddDate(0, 0, -1), NotAfter: now.AddDate(certYears, 0, 0)}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func decodePEM(data []byte) []byte {
	b, _ := pem.Decode(data)
	if b == nil {
		return nil
	}
	return b.Bytes
}

// writePrivate writes a new file that only the agent may read, flushed.
func writePrivate(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// Issue returns what node needs to stream from this Postgres, and only from it.
func (i *Instance) Issue(node cluster.NodeID) (Credential, error) {
	if err := checkNames(i.cfg.Cluster, node); err != nil {
		return Credential{}, err
	}
	cert, key, err := i.ca.issue(peerPrefix+string(node), "", false, time.Now())
	if err != nil {
		return Credential{}, fmt.Errorf("issue a certificate for %s: %w", node, err)
	}
	return Credential{CertPEM: cert, KeyPEM: key, RootPEM: i.ca.certPEM}, nil
}

// writeServerFiles puts what our starts serve TLS with on tmpfs: made anew in
// each life, so that there is no key on disk to be copied with a directory.
func (i *Instance) writeServerFiles() error {
	cert, key, err := i.ca.issue("holdfast-server-"+i.cfg.Cluster+"-"+string(i.cfg.Self), i.cfg.Address, true, time.Now())
	if err != nil {
		return err
	}
	dir := filepath.Join(i.cfg.RunDir, "tls")
	if err := i.makeDir(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(i.writeVolatile(filepath.Join(dir, "ca.crt"), i.ca.certPEM),
		i.writeVolatile(filepath.Join(dir, "server.key"), key),
		i.writeVolatile(filepath.Join(dir, "server.crt"), cert))
}
