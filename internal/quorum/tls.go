package quorum

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// serverName is in every node's certificate: nodes are known by the authority
// that admitted them, wherever they listen.
const serverName = "register.holdfast.internal"

// Names of the files that Authority.Save and Identity.Save write.
const (
	CACertFile   = "ca.crt"
	CAKeyFile    = "ca.key"
	NodeCertFile = "node.crt"
	NodeKeyFile  = "node.key"
)

// Authority admits nodes to one cluster. Whoever has its key can join.
type Authority struct {
	CertPEM, KeyPEM []byte
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
}

// NewAuthority makes the authority of a cluster, valid from an hour before now
// (clocks differ) for as long as said.
func NewAuthority(cluster string, now time.Time, valid time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	t, err := template(cluster+" register authority", now, valid)
	if err != nil {
		return nil, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return ParseAuthority(encodeCert(der), keyPEM)
}

// ParseAuthority reads back what NewAuthority made.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("read the authority's certificate: it is not one that this program made")
	}
	return &Authority{CertPEM: certPEM, KeyPEM: keyPEM, cert: pair.Leaf, key: key}, nil
}

// Save writes ca.crt and ca.key (mode 0600) into dir; it replaces neither.
func (a *Authority) Save(dir string) error {
	if err := writeNew(filepath.Join(dir, CAKeyFile), a.KeyPEM, 0o600); err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, CACertFile), a.CertPEM, 0o644)
}

// LoadAuthority reads what Save wrote.
func LoadAuthority(dir string) (*Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, CACertFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, CAKeyFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	return ParseAuthority(cert, key)
}

// Identity is what one node shows to the others.
type Identity struct{ CAPEM, CertPEM, KeyPEM []byte }

// Issue makes the certificate of a node.
func (a *Authority) Issue(node string, now time.Time, valid time.Duration) (Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("make the key of node %s: %w", node, err)
	}
	t, err := template(node, now, valid)
	if err != nil {
		return Identity{}, err
	}
	t.DNSNames = []string{serverName}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return Identity{}, fmt.Errorf("make the certificate of node %s: %w", node, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Identity{}, err
	}
	return Identity{CAPEM: a.CertPEM, CertPEM: encodeCert(der), KeyPEM: keyPEM}, nil
}

// Save writes ca.crt, node.crt and node.key (mode 0600) into dir; it replaces none.
func (i Identity) Save(dir string) error {
	if err := writeNew(filepath.Join(dir, NodeKeyFile), i.KeyPEM, 0o600); err != nil {
		return err
	}
	if err := writeNew(filepath.Join(dir, NodeCertFile), i.CertPEM, 0o644); err != nil {
		return err
	}
	return writeNew(filepath.Join(dir, CACertFile), i.CAPEM, 0o644)
}

// LoadIdentity reads what Save wrote. A key that others may read is refused.
func LoadIdentity(dir string) (Identity, error) {
	var i Identity
	for name, to := range map[string]*[]byte{CACertFile: &i.CAPEM, NodeCertFile: &i.CertPEM, NodeKeyFile: &i.KeyPEM} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return Identity{}, fmt.Errorf("read this node's certificate: %w", err)
		}
		*to = b
	}
	key := filepath.Join(dir, NodeKeyFile)
	fi, err := os.Stat(key)
	if err != nil {
		return Identity{}, fmt.Errorf("look at this node's key: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return Identity{}, fmt.Errorf("%s may be read by others (mode %04o): chmod 0600 it, and replace it if anybody could have copied it", key, fi.Mode().Perm())
	}
	return i, nil
}

// TLS is the configuration for both ends of every connection: TLS 1.3, and
// nobody without a certificate of the same authority.
func (i Identity) TLS() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(i.CertPEM, i.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("read this node's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(i.CAPEM) {
		return nil, errors.New("read the authority's certificate: no certificate in it")
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ServerName:   serverName,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

func template(name string, now time.Time, valid time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(valid),
	}, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func writeNew(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}
