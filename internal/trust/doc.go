// Package trust makes and checks what the nodes of an encrypted cluster show each other: the
// authority, node certificates and join tokens. docs/security.md says what they are good for.
//
// The authority's key is in the catalog of every member (dsm.Trust). So a member signs its own
// certificate, whenever the one it has is half over, and any member can sign that of a node which
// joins. What a certificate says about a member is not enough: its key must also be the one that
// the catalog has for the node. So a removed machine that kept the authority's key cannot pass for
// a member.
package trust
